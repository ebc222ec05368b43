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

std::string machine_text(const std::string& target, int threads) {
  return fmt::format("{} with {} thread{}", target, threads, threads == 1 ? "" : "s");
}

}  // namespace qkv::study
