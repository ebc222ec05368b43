#include "study/page.h"

#include <fmt/format.h>

#include "study/style.h"

namespace qkv::study {
namespace {

std::string badge(Finding::Verdict verdict) {
  switch (verdict) {
    case Finding::Verdict::holds: return "<span class=\"badge holds\">holds</span>";
    case Finding::Verdict::loose: return "<span class=\"badge loose\">loose</span>";
    case Finding::Verdict::disagrees: return "<span class=\"badge off\">disagrees</span>";
  }
  return {};
}

}  // namespace

std::string pretty(std::string text) {
  const auto replace = [&text](const std::string& from, const std::string& to) {
    for (std::size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size()) {
      text.replace(at, from.size(), to);
    }
  };
  text = escaped(text);
  replace("sqrt(d_k)", "√d<sub>k</sub>");
  replace("d_k", "d<sub>k</sub>");
  return text;
}

std::string page(const std::string& title, const std::string& body) {
  return fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n"
      "<meta name=\"color-scheme\" content=\"light dark\"/>\n"
      "<title>{}</title>\n<style>\n{}{}</style>\n</head>\n<body>\n<main>\n{}</main>\n</body>\n"
      "</html>\n",
      escaped(title), kDrawingStyle, kPageStyle, body);
}

std::string findings_html(const std::vector<Finding>& findings) {
  std::string html = "<section>\n<h2>Findings</h2>\n<ul class=\"findings\">\n";
  for (const Finding& finding : findings) {
    html += fmt::format("<li>{}<p>{}</p></li>\n", badge(finding.verdict), pretty(finding.text));
  }
  return html + "</ul>\n</section>\n";
}

std::string legend(const std::vector<std::string>& names, const std::string& note) {
  std::string html = "<div class=\"legend\" aria-label=\"Legend\">";
  for (std::size_t i = 0; i < names.size(); ++i) {
    const PlotStyle& style = kStyles[i % std::size(kStyles)];
    html += fmt::format("<span class=\"series-{}\"><b>{}</b> {}</span>", style.style, style.shape,
                        pretty(names[i]));
  }
  return html + fmt::format("<span class=\"muted\">{}</span></div>\n", note);
}

std::string figure(const Plot& plot, const std::string& caption) {
  return fmt::format("<figure>\n<figcaption><strong>{}</strong> {}</figcaption>\n{}</figure>\n",
                     pretty(plot.title), caption, to_svg(plot));
}

std::string drawing(const std::vector<std::string>& names, const std::vector<Plot>& plots) {
  constexpr double kPanel = 520, kHeight = 330, kHead = 34, kTitle = 22, kBaseline = 22;
  constexpr double kFirst = 62, kCharacter = 7.2, kGap = 40;
  std::string keys, panels;
  double x = kFirst;
  for (std::size_t i = 0; i < names.size(); ++i) {
    const PlotStyle& style = kStyles[i % std::size(kStyles)];
    keys += fmt::format(
        "<text class=\"key\" x=\"{:.0f}\" y=\"{:.0f}\"><tspan class=\"key-{}\">{}</tspan> "
        "{}</text>\n",
        x, kBaseline, style.style, style.shape, escaped(names[i]));
    x += kGap + kCharacter * static_cast<double>(names[i].size());
  }
  for (std::size_t i = 0; i < plots.size(); ++i) {
    panels += fmt::format(
        "<g transform=\"translate({} {})\">\n<text x=\"{}\" y=\"12\">{}</text>\n"
        "<g transform=\"translate(0 {})\">\n{}</g></g>\n",
        kPanel * static_cast<double>(i), kHead, kFirst, escaped(plots[i].title), kTitle,
        to_svg(plots[i], PlotSize{kPanel, kHeight}));
  }
  const double width = kPanel * static_cast<double>(plots.size());
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" "
      "height=\"{1}\">\n<style>{2}</style>\n<rect width=\"100%\" height=\"100%\" "
      "class=\"paper\"/>\n{3}{4}</svg>\n",
      width, kHead + kTitle + kHeight, kDrawingStyle, keys, panels);
}

std::string machine_text(const std::string& target, int threads) {
  return fmt::format("{} with {} thread{}", target, threads, threads == 1 ? "" : "s");
}

}  // namespace qkv::study
