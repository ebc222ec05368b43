"""BERT-base and GPT-2 124M for bench/peers.py: the cases, the weights, and the models in PyTorch.

The weights are random and the same for all peers; nothing is downloaded. Computed is what `qkv
bench model` computes: of BERT all hidden states and the pooled one, of GPT-2 the logits of the last
position and the keys and values of all. What can be done in several ways is offered as variants, of
which peers.py takes the fastest. onnx_models.py has the models for ONNX Runtime.
"""

import functools
from dataclasses import dataclass

HIDDEN, HEADS, LAYERS = 768, 12, 12
SIZE = HIDDEN // HEADS
STEPS = 32  # of ours, in a decode case


@dataclass(frozen=True)
class ModelCase:
    name: str
    model: str
    batch: int
    tokens: int
    decode: bool = False

    rate, rate_unit, backward = "tokens_per_s", "tokens/s", False

    def per_second(self, ms):
        return 1e3 * self.batch * (1 if self.decode else self.tokens) / ms

    def describe(self):
        return {"model": self.model, "batch": self.batch, "tokens": self.tokens,
                "decode": self.decode}

    @property
    def past(self):
        """Before the step that peers repeat; in the middle of ours, so that the work is equal."""
        return self.tokens + STEPS // 2 if self.decode else 0


MODEL_CASES = [
    ModelCase("bert-base, 1 x 128", "bert-base", 1, 128),
    ModelCase("bert-base, 8 x 128", "bert-base", 8, 128),
    ModelCase("gpt2 decode at 64 past", "gpt2", 1, 64, decode=True),
    ModelCase("gpt2 prefill 512", "gpt2", 1, 512),
]


@functools.lru_cache(maxsize=1)
def make_weights(model):
    """Arrays by name; matrices as (in, out), in f32."""
    import numpy as np
    noise = 0.02 * np.random.default_rng(1).standard_normal(1000003, dtype=np.float32)
    weights = {}

    def draw(name, *shape):
        weights[name] = np.resize(noise, shape)

    def norm(name):
        weights[f"{name}.scale"] = np.ones(HIDDEN, np.float32)
        draw(f"{name}.bias", HIDDEN)

    def linear(name, inputs, outputs):
        draw(f"{name}.weight", inputs, outputs)
        draw(f"{name}.bias", outputs)

    is_bert = model == "bert-base"
    draw("words", 30522 if is_bert else 50257, HIDDEN)
    draw("positions", 512 if is_bert else 1024, HIDDEN)
    norm("norm")
    if is_bert:
        draw("types", 2, HIDDEN)
        linear("pooler", HIDDEN, HIDDEN)
    for i in range(LAYERS):
        norm(f"{i}.norm1")
        norm(f"{i}.norm2")
        linear(f"{i}.qkv", HIDDEN, 3 * HIDDEN)
        linear(f"{i}.out", HIDDEN, HIDDEN)
        linear(f"{i}.up", HIDDEN, 4 * HIDDEN)
        linear(f"{i}.down", 4 * HIDDEN, HIDDEN)
    return weights


def make_ids(case):
    import numpy as np
    count = 1 if case.decode else case.tokens
    return (np.arange(case.batch * count) * 7919 + 13).reshape(case.batch, count) % 30522


class TorchModel:
    def __init__(self, case, kind):
        import torch
        self.torch, self.f, self.kind, self.case = torch, torch.nn.functional, kind, case
        self.w = {}
        for name, array in make_weights(case.model).items():
            tensor = torch.from_numpy(array.T.copy() if name.endswith(".weight") else array)
            self.w[name] = tensor.to(kind)
        self.ids = torch.from_numpy(make_ids(case))
        self.rows = slice(case.past, case.past + self.ids.shape[1])
        self.epsilon = 1e-12 if case.model == "bert-base" else 1e-5
        shape = (2, case.batch, HEADS, self.rows.stop, SIZE)
        self.cache = [torch.zeros(shape, dtype=kind) for _ in range(LAYERS)]
        self.head = lambda x: self.f.linear(x, self.w["words"])

    def linear(self, name, x):
        return self.f.linear(x, self.w[f"{name}.weight"], self.w[f"{name}.bias"])

    def norm(self, name, x):
        return self.f.layer_norm(x, (HIDDEN,), self.w[f"{name}.scale"], self.w[f"{name}.bias"],
                                 self.epsilon)

    def attend(self, i, x, causal):
        b, s, _ = x.shape
        q, k, v = (part.view(b, s, HEADS, SIZE).transpose(1, 2)
                   for part in self.linear(f"{i}.qkv", x).split(HIDDEN, dim=-1))
        if causal:
            keys, values = self.cache[i]
            keys[:, :, self.rows], values[:, :, self.rows] = k, v
            k, v = (keys, values) if self.case.decode else (k, v)
        out = self.f.scaled_dot_product_attention(q, k, v, is_causal=causal and s > 1)
        return self.linear(f"{i}.out", out.transpose(1, 2).reshape(b, s, HIDDEN))

    def bert(self):
        w = self.w
        x = self.norm("norm", w["words"][self.ids] + w["positions"][self.rows] + w["types"][0])
        for i in range(LAYERS):
            x = self.norm(f"{i}.norm1", x + self.attend(i, x, causal=False))
            up = self.f.gelu(self.linear(f"{i}.up", x))
            x = self.norm(f"{i}.norm2", x + self.linear(f"{i}.down", up))
        return x, self.torch.tanh(self.linear("pooler", x[:, 0]))

    def gpt2(self):
        x = self.w["words"][self.ids] + self.w["positions"][self.rows]
        for i in range(LAYERS):
            x = x + self.attend(i, self.norm(f"{i}.norm1", x), causal=True)
            up = self.linear(f"{i}.up", self.norm(f"{i}.norm2", x))
            x = x + self.linear(f"{i}.down", self.f.gelu(up, approximate="tanh"))
        return (self.head(self.norm("norm", x[:, -1])),)

    def __call__(self):
        with self.torch.inference_mode():
            return self.bert() if self.case.model == "bert-base" else self.gpt2()


def torch_variants(case, dtype):
    """Variants as (name, dtype, what makes the call to time)."""
    import torch

    def plain(kind):
        return lambda: TorchModel(case, kind)

    def autocast():
        model = TorchModel(case, torch.float32)
        model.cache = [cache.bfloat16() for cache in model.cache]

        def call():
            with torch.autocast("cpu", torch.bfloat16):
                return model()
        return call

    def medium():
        model = TorchModel(case, torch.float32)

        def call():
            torch.set_float32_matmul_precision("medium")
            try:
                return model()
            finally:
                torch.set_float32_matmul_precision("highest")
        return call

    if dtype == "f32":
        return [("f32", "f32", plain(torch.float32))]
    if dtype == "f16":
        return [("f16", "f16", plain(torch.float16))]
    def int8():
        model = TorchModel(case, torch.float32)
        layers = {}
        for name, weight in model.w.items():
            if name.endswith(".weight") or name == "words" and case.model == "gpt2":
                linear = torch.nn.Linear(weight.shape[1], weight.shape[0])
                linear.weight.data = weight
                linear.bias.data = model.w.get(name.replace("weight", "bias"),
                                               torch.zeros(weight.shape[0]))
                wrapped = torch.nn.Sequential(linear)
                layers[name] = torch.ao.quantization.quantize_dynamic(
                    wrapped, {torch.nn.Linear}, torch.qint8)
        model.linear = lambda name, x: layers[f"{name}.weight"](x)
        model.head = layers.get("words")
        return model

    if dtype == "i8":
        return [("int8", "i8", int8), ("bf16", "bf16", plain(torch.bfloat16))]
    return [("bf16", "bf16", plain(torch.bfloat16)), ("autocast", "bf16", autocast),
            ("f32 weights, bf16 products", "bf16", medium)]
