// The page in front of `qkv serve`: what is typed goes to the model, its attention comes back.

const PAUSE = 250; // ms after the last key

class Live {
  constructor(app, {model, title, example, runs, token}) {
    this.app = app;
    this.token = token || "";
    this.asked = 0;
    find("live").hidden = false;
    find("title").textContent = title;
    find("runs-link").hidden = !runs;
    if (this.token) find("runs-link").href = `runs?token=${encodeURIComponent(this.token)}`;
    find("target-label").hidden = model.kind !== "encoder-decoder";
    find("more-label").hidden = model.kind !== "decoder";
    find("text").value = example;
    for (const id of ["text", "target", "more"]) {
      find(id).addEventListener("input", () => {
        clearTimeout(this.timer);
        this.timer = setTimeout(() => this.look(), PAUSE);
      });
    }
    this.look();
  }

  async ask(path, options = {}) {
    const headers = {...options.headers};
    if (this.token) headers.Authorization = `Bearer ${this.token}`;
    const response = await fetch(path, {...options, headers});
    const json = await response.json();
    if (!response.ok) throw new Error(json.error);
    return json;
  }

  async look() {
    const text = find("text").value;
    if (!text.trim()) return;
    const turn = ++this.asked, status = find("status");
    if (this.stop) this.stop.abort();
    this.stop = new AbortController();
    status.textContent = "looking…";
    try {
      const body = {text, target: find("target").value, new_tokens: Number(find("more").value) || 0};
      const json = await this.ask("api/look", {
        method: "POST", headers: {"Content-Type": "application/json"}, body: JSON.stringify(body),
        signal: this.stop.signal});
      if (turn !== this.asked) return;
      status.textContent = `${json.seconds.toFixed(2)} s`;
      this.id = json.id;
      this.app.open(json, this.app.picture !== null);
    } catch (error) {
      if (turn === this.asked && error.name !== "AbortError") status.textContent = error.message;
    }
  }

  // All weights of one row, or null when the server has moved on to another text.
  async row(head, row) {
    const query = new URLSearchParams({id: this.id, map: head.map.name, layer: head.layer.index,
                                       head: head.index, row});
    try {
      return Float32Array.from((await this.ask(`api/rows?${query}`)).weights);
    } catch {
      return null;
    }
  }
}
