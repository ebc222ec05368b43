// The picture: numbers out of base64, and rows of weights from wherever they can be had.

const bytesOf = (text) => {
  const raw = atob(text), bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; ++i) bytes[i] = raw.charCodeAt(i);
  return bytes.buffer;
};
const WEIGHT = 65535; // a weight of 1

// One head of one layer of one map. Numbers are decoded when they are first looked at.
class Head {
  constructor(map, layer, index) {
    this.map = map;
    this.layer = layer;
    this.index = index;
    this.data = layer.json.heads[index];
    this.rows = map.rowTokens.length;
    this.keys = map.keyTokens.length;
  }
  get statistics() {
    const all = this.layer.json.statistics, one = {};
    for (const name of Object.keys(all)) one[name] = all[name][this.index];
    return one;
  }
  once(name, make) {
    const kept = "_" + name;
    if (!(kept in this)) this[kept] = make();
    return this[kept];
  }
  // All weights as 16-bit numbers [rows, keys], or null.
  get table() {
    return this.once("table",
        () => this.data.weights ? new Uint16Array(bytesOf(this.data.weights)) : null);
  }
  // What a thumbnail shows: the table, or its pooled blocks.
  get blocks() {
    return this.once("blocks", () => {
      if (this.table) return {rows: this.rows, keys: this.keys, values: this.table};
      const [rows, keys] = this.data.shape;
      return {rows, keys, values: new Uint16Array(bytesOf(this.data.pooled))};
    });
  }
  get queries() {
    return this.once("queries",
        () => this.data.queries ? new Float32Array(bytesOf(this.data.queries)) : null);
  }
  get lse() {
    return this.once("lse", () => new Float32Array(bytesOf(this.data.lse)));
  }
  get keyVectors() {
    const {json, heads} = this.layer;
    const shared = Math.floor(this.index * json.key_heads / heads.length);
    return this.layer.keyVectors(shared);
  }
  // Row i as weights between 0 and 1: as the kernels gave it, or computed here as they do; null
  // where the page holds only the largest.
  row(i) {
    if (this.table) {
      return Float32Array.from(this.table.subarray(i * this.keys, (i + 1) * this.keys),
                               (p) => p / WEIGHT);
    }
    if (!this.queries) return null;
    const weights = new Float32Array(this.keys), lse = this.lse[i];
    for (let j = 0; j < this.keys; ++j) {
      if (this.layer.sees(i, j)) weights[j] = Math.exp(this.score(i, j).score - lse);
    }
    return weights;
  }
  // The largest weights of row i, largest first.
  top(i, count) {
    const row = this.row(i);
    if (row) return largest(row, count);
    const each = this.map.picture.top;
    if (!each) return [];
    const at = this.once("top_keys", () => new Uint32Array(bytesOf(this.data.top_keys)));
    const of = this.once("top_weights", () => new Uint16Array(bytesOf(this.data.top_weights)));
    const found = [];
    for (let t = i * each; t < i * each + Math.min(each, count); ++t) {
      if (of[t] > 0) found.push({key: at[t], weight: of[t] / WEIGHT});
    }
    return found;
  }
  // How the score of a pair comes about.
  score(i, j) {
    const size = this.map.headSize, rule = this.layer.json;
    const q = this.queries.subarray(i * size, (i + 1) * size);
    const k = this.keyVectors.subarray(j * size, (j + 1) * size);
    let dot = 0;
    for (let d = 0; d < size; ++d) dot += q[d] * k[d];
    const scaled = dot * rule.scale;
    const capped = rule.softcap > 0 ? rule.softcap * Math.tanh(scaled / rule.softcap) : scaled;
    const bias = this.layer.bias(this.index, i, j);
    return {q, k, dot, scaled, capped, bias, score: capped + bias};
  }
}

// The mean of all heads of a layer, where their tables are there.
class MeanHead {
  constructor(heads) {
    this.heads = heads;
    this.index = -1;
    Object.assign(this, {map: heads[0].map, layer: heads[0].layer, rows: heads[0].rows,
                         keys: heads[0].keys});
  }
  get table() {
    if (!this._table) {
      const sum = new Float32Array(this.rows * this.keys);
      for (const head of this.heads) head.table.forEach((p, i) => { sum[i] += p; });
      this._table = sum.map((p) => p / this.heads.length);
    }
    return this._table;
  }
  get blocks() { return {rows: this.rows, keys: this.keys, values: this.table}; }
  row(i) { return this.table.slice(i * this.keys, (i + 1) * this.keys).map((p) => p / WEIGHT); }
  top(i, count) { return largest(this.row(i), count); }
}

const largest = (row, count) => Array.from(row, (weight, key) => ({key, weight}))
    .filter((pair) => pair.weight > 0)
    .sort((a, b) => b.weight - a.weight || a.key - b.key).slice(0, count);

// The bucket of a relative position, as T5 defines it.
const bucketOf = (relative, buckets, bidirectional, most) => {
  let bucket = 0, distance = -relative;
  if (bidirectional) {
    buckets = Math.floor(buckets / 2);
    if (relative > 0) bucket = buckets;
    distance = Math.abs(relative);
  } else {
    distance = Math.max(distance, 0);
  }
  const exact = Math.floor(buckets / 2);
  if (distance < exact) return bucket + distance;
  const far = exact + Math.floor(Math.log(distance / exact) / Math.log(most / exact) *
                                 (buckets - exact));
  return bucket + Math.min(far, buckets - 1);
};

class Layer {
  constructor(map, json, index) {
    this.map = map;
    this.json = json;
    this.index = index;
    this.heads = json.heads.map((_, head) => new Head(map, this, head));
    this._vectors = {};
  }
  head(index) {
    if (index >= 0) return this.heads[Math.min(index, this.heads.length - 1)];
    if (!this._mean) this._mean = new MeanHead(this.heads);
    return this._mean;
  }
  keyVectors(shared) {
    if (!this._vectors[shared]) {
      this._vectors[shared] = new Float32Array(bytesOf(this.json.keys[shared]));
    }
    return this._vectors[shared];
  }
  at(i) { return i + this.map.keyTokens.length - this.map.rowTokens.length; }
  sees(i, j) {
    const {causal, left, right} = this.json;
    if (!causal && left < 0 && right < 0) return true;
    const at = this.at(i);
    return !(causal && j > at) && !(left >= 0 && j < at - left) && !(right >= 0 && j > at + right);
  }
  bias(head, i, j) {
    const {slopes, distances} = this.json;
    if (slopes) return -slopes[head] * Math.abs(this.at(i) - j);
    if (!distances) return 0;
    if (!this._table) this._table = new Float32Array(bytesOf(distances.table));
    const bucket = bucketOf(j - this.at(i), distances.buckets, distances.bidirectional,
                            distances.max);
    return this._table[bucket * this.heads.length + head];
  }
}

class AttentionMap {
  constructor(picture, json) {
    this.picture = picture;
    this.name = json.name;
    this.heads = json.heads;
    this.headSize = json.head_size;
    this.rowTokens = picture.tokens[json.rows].texts;
    this.keyTokens = picture.tokens[json.keys].texts;
    this.isSelf = json.rows === json.keys;
    this.layers = json.layers.map((layer, i) => new Layer(this, layer, i));
  }
}

class Picture {
  constructor(json) {
    Object.assign(this, json);
    this.maps = json.maps.map((map) => new AttentionMap(this, map));
  }
  map(name) { return this.maps.find((map) => map.name === name) || this.firstMap; }
  get firstMap() { return this.maps.find((map) => map.name === "cross") || this.maps[0]; }
}
