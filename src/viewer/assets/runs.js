// The page of training runs: asks again every two seconds, as long as somebody looks.

const EVERY = 2000; // ms

Object.assign(STATISTICS, {
  entropy: STATISTICS.entropy_relative, // which is what training reports under this name
  q_grad_norm: {label: "Gradient of q", unit: shortNumber, from: 0,
                about: "The norm of the gradient that reaches the queries of a head."},
  k_grad_norm: {label: "Gradient of k", unit: shortNumber, from: 0,
                about: "The norm of the gradient that reaches the keys of a head."},
});

// The name of a run out of the address; one that was not made here is none.
const nameOf = (hash) => {
  try {
    return decodeURIComponent(hash.slice(1));
  } catch {
    return "";
  }
};

const page = {
  token: JSON.parse(find("picture").textContent).token,
  run: nameOf(location.hash),
  statistic: "entropy",
  report: null, // index of the health report; null = the last

  async ask(path) {
    const headers = this.token ? {Authorization: `Bearer ${this.token}`} : {};
    const response = await fetch(path, {headers});
    const json = await response.json();
    if (!response.ok) throw new Error(json.error);
    return json;
  },

  async refresh() {
    try {
      const {runs, left_out: leftOut} = await this.ask("api/runs");
      find("empty").hidden = runs.length > 0;
      find("left-out").hidden = leftOut === 0;
      find("left-out").textContent = `${count(leftOut, "folder")} more, whose names come before these.`;
      const first = runs.find(({error}) => !error) || runs[0];
      if (!runs.some(({name}) => name === this.run)) this.run = first ? first.name : "";
      segments(find("runs"), runs.map(({name}) => ({value: name, label: name})), this.run,
               (name) => this.choose(name));
      find("runs").hidden = runs.length === 0;
      if (this.run) {
        const about = runs.find(({name}) => name === this.run);
        if (about.error) this.clear(about.error);
        else this.show(await this.ask(`api/run?name=${encodeURIComponent(this.run)}`), about);
      }
    } catch (error) {
      find("facts").textContent = error.message;
    }
  },
  choose(name) {
    this.run = name;
    this.report = null;
    history.replaceState(null, "", `#${encodeURIComponent(name)}`);
    this.refresh();
  },

  // A run that cannot be read says why, in its own place.
  clear(error) {
    find("facts").textContent = error;
    find("curves").replaceChildren();
    find("warnings").hidden = find("health").hidden = true;
    this.json = null;
  },

  show(json, about) {
    this.json = json;
    const {points, evaluations} = json, steps = points.step.length;
    const idle = about.idle_seconds;
    find("facts").textContent = !steps ? "waiting for the first step"
        : `step ${points.step[steps - 1]} · loss ${shortNumber(points.loss[steps - 1])} · ` +
          (idle < 60 ? "running" : `last written ${Math.round(idle / 60)} min ago`) +
          (json.averaged > 1 ? ` · each point is the mean of ${json.averaged}` : "") +
          (json.unread ? ` · ${Math.ceil(json.unread / 1e6)} MB still to be read` : "");
    if (json.unreadable) {
      find("facts").textContent +=
          ` · ${count(json.unreadable, "line")} could not be read: ${json.first_unreadable}`;
    }
    const line = (key) => points.step.map((step, i) => [step, points[key][i]]);
    const evaluated = (key) => evaluations.filter((e) => key in e).map((e) => [e.step, e[key]]);
    const a = (name, list) => ({name, style: "a", points: list});
    const curves = [
      curve({title: "Loss", series: [a("training", line("loss")),
                                     {name: "evaluation", style: "b", points: evaluated("loss")}]
          .filter(({points: list}) => list.length)}),
      curve({title: "Perplexity", log: true, series: [a("evaluation", evaluated("perplexity"))]}),
      curve({title: "Accuracy", series: [a("evaluation", evaluated("accuracy"))]}),
      curve({title: "BLEU", series: [a("evaluation", evaluated("bleu"))]}),
      curve({title: "Learning rate", series: [a("lr", line("lr"))]}),
      curve({title: "Tokens per second", series: [a("training", line("tokens_per_second"))]}),
    ];
    find("curves").replaceChildren(...curves.filter(Boolean));
    this.warn(json.warnings);
    this.showHealth();
  },
  warn(warnings) {
    find("warnings").hidden = warnings.length === 0;
    find("warnings").replaceChildren(el("h2", {}, el("b", {}, `${count(warnings.length, "warning")}`)),
        el("ul", {}, warnings.slice(-5).reverse().map(({step, text}) => el("li", {},
            el("small", {}, `step ${step}`), " ", text))));
  },

  showHealth() {
    const reports = this.json.health, node = find("health");
    node.hidden = reports.length === 0;
    if (!reports.length) return;
    if (node.contains(document.activeElement) && this.report === null && node.querySelector("svg") &&
        document.activeElement.type === "range") return; // somebody is sliding
    const at = Math.min(this.report ?? reports.length - 1, reports.length - 1);
    const report = reports[at];
    const known = Object.entries(STATISTICS).filter(([name]) => name in report);
    if (!known.some(([name]) => name === this.statistic)) this.statistic = known[0][0];
    const picker = el("div", {class: "segments", role: "radiogroup", "aria-label": "Statistic"});
    segments(picker, known.map(([value, {label}]) => ({value, label})), this.statistic, (value) => {
      this.statistic = value;
      this.showHealth();
    });
    const slider = el("input", {type: "range", min: 0, max: reports.length - 1, value: at,
                                "aria-label": "Report", oninput: (event) => {
      const to = Number(event.target.value);
      this.report = to === reports.length - 1 ? null : to;
      this.drawHealth(to);
    }});
    this.map = el("div", {class: "scroll"});
    this.stepText = el("span", {class: "muted"});
    node.replaceChildren(el("h2", {}, el("b", {}, "Health of the heads")),
        el("div", {class: "row"}, picker, slider, this.stepText),
        el("p", {class: "about"}, STATISTICS[this.statistic].about), this.map);
    this.drawHealth(at);
  },
  drawHealth(at) {
    const report = this.json.health[at];
    this.stepText.textContent = `step ${report.step}`;
    if (!report[this.statistic]) return this.map.replaceChildren(); // none of its heads had it
    const values = report[this.statistic].map((row) => row.map((x) => x === null ? NaN : x));
    this.map.replaceChildren(heatMap({values, statistic: this.statistic,
                                      label: (l) => report.names[l]}));
  },
};

if (page.token) find("look-link").href = `./?token=${encodeURIComponent(page.token)}`;
setUpExport(() => `${page.run}-${page.statistic}`);
setUpTheme(() => page.json && page.showHealth());
page.refresh();
setInterval(() => document.hidden || page.refresh(), EVERY);
