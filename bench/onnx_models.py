"""The models of model_peers.py for ONNX Runtime, as graphs of its fused operators.

They are what its optimizer makes of an exported model when every pattern matches; written out, they
depend neither on the exporter nor on PyTorch.
"""

import functools
import pathlib
import platform
import tempfile

from model_peers import HEADS, HIDDEN, LAYERS, SIZE, make_ids, make_weights


class Graph:
    def __init__(self, case, kind, attention):
        import numpy
        import onnx
        self.np, self.onnx, self.helper = numpy, onnx, onnx.helper
        self.case, self.kind, self.attention = case, numpy.dtype(kind), attention
        self.nodes, self.initializers, self.outputs, self.feeds = [], {}, {}, {}
        self.shared = {}  # outputs written into the buffer of an input
        self.add_feed("ids", make_ids(case).astype(numpy.int32))
        self.epsilon = 1e-12 if case.model == "bert-base" else 1e-5
        if case.model == "bert-base":
            self.bert()
        else:
            self.gpt2()

    def add_feed(self, name, array):
        self.feeds[name] = array
        return name

    def constant(self, name, array):
        self.initializers[name] = self.onnx.numpy_helper.from_array(array, name)
        return name

    def weight(self, name, columns=slice(None)):
        array = make_weights(self.case.model)[name][..., columns].astype(self.kind)
        return self.constant(f"{name}.{columns.start or 0}", array)

    def op(self, kind, *inputs, outputs=1, **attributes):
        """A standard operator, or if there is none one of ONNX Runtime; the name of its output."""
        names = [f"{len(self.nodes)}.{i}" if i in (0, outputs - 1) else "" for i in range(outputs)]
        own = kind not in ("Add", "Gather", "Gemm", "LayerNormalization", "MatMul", "Tanh")
        self.nodes.append(self.helper.make_node(
            kind, list(inputs), names, domain="com.microsoft" if own else "", **attributes))
        return names[0] if outputs == 1 else names

    def matmul(self, name, x, columns=slice(None)):
        return self.op("MatMul", x, self.weight(f"{name}.weight", columns))

    def norm(self, name):
        return self.weight(f"{name}.scale"), self.weight(f"{name}.bias")

    def residual(self, x, product, linear, norm):
        """The normed sum of x, a product and its bias; and the sum itself."""
        names = self.op("SkipLayerNormalization", product, x, *self.norm(norm),
                        self.weight(f"{linear}.bias"), outputs=4, epsilon=self.epsilon)
        return names[0], names[3]

    def attend(self, i, x):
        weight, bias = f"{i}.qkv.weight", f"{i}.qkv.bias"
        if self.attention == "MultiHeadAttention":
            parts = [self.matmul(f"{i}.qkv", x, slice(at, at + HIDDEN))
                     for at in range(0, 3 * HIDDEN, HIDDEN)]
            out = self.op("MultiHeadAttention", *parts, self.weight(bias), num_heads=HEADS)
        elif self.attention == "GroupQueryAttention":  # its cache is updated in place
            qkv = self.op("Add", self.op("MatMul", x, self.weight(weight)), self.weight(bias))
            past = [self.add_feed(f"{i}.past_{name}", self.empty(self.feeds["total"][0]))
                    for name in ("key", "value")]
            out = f"{i}.attended"
            present = [f"{i}.present_key", f"{i}.present_value"]
            self.nodes.append(self.helper.make_node(
                "GroupQueryAttention", [qkv, "", "", *past, "seqlens_k", "total"],
                [out, *present], domain="com.microsoft", num_heads=HEADS, kv_num_heads=HEADS))
            self.shared |= dict(zip(present, past))
        else:
            inputs = [x, self.weight(weight), self.weight(bias)]
            if self.case.decode:
                shape = 2, *self.empty(self.case.past).shape
                inputs += ["", self.add_feed(f"{i}.past", self.np.zeros(shape, self.kind))]
            causal = self.case.model == "gpt2"
            out = self.op("Attention", *inputs, outputs=1 + causal, num_heads=HEADS,
                          unidirectional=int(causal))
            if causal:
                out, present = out
                self.outputs[present] = 5
        return self.op("MatMul", out, self.weight(f"{i}.out.weight"))

    def empty(self, rows):
        return self.np.zeros((self.case.batch, HEADS, int(rows), SIZE), self.kind)

    def bert(self):
        self.add_feed("types", self.np.zeros_like(self.feeds["ids"]))
        x, _ = self.op("EmbedLayerNormalization", "ids", "types", self.weight("words"),
                       self.weight("positions"), self.weight("types"), *self.norm("norm"),
                       outputs=2, epsilon=self.epsilon)
        for i in range(LAYERS):
            x, _ = self.residual(x, self.attend(i, x), f"{i}.out", f"{i}.norm1")
            up = self.op("BiasGelu", self.matmul(f"{i}.up", x), self.weight(f"{i}.up.bias"))
            x, _ = self.residual(x, self.matmul(f"{i}.down", up), f"{i}.down", f"{i}.norm2")
        first = self.op("Gather", x, self.constant("first", self.np.int64(0)), axis=1)
        pooled = self.op("Gemm", first, self.weight("pooler.weight"), self.weight("pooler.bias"))
        self.outputs = {x: 3, self.op("Tanh", pooled): 2}

    def gpt2(self):
        np, case = self.np, self.case
        total = case.past + self.feeds["ids"].shape[1]
        self.add_feed("rows", np.arange(case.past, total))
        if self.attention == "GroupQueryAttention":
            self.add_feed("seqlens_k", np.full(case.batch, total - 1, np.int32))
            self.add_feed("total", np.array([total], np.int32))
        x = self.op("Add", self.op("Gather", self.weight("words"), "ids"),
                    self.op("Gather", self.weight("positions"), "rows"))
        normed = self.op("LayerNormalization", x, *self.norm("0.norm1"), epsilon=self.epsilon)
        for i in range(LAYERS):
            normed, x = self.residual(x, self.attend(i, normed), f"{i}.out", f"{i}.norm2")
            up = self.op("FastGelu", self.matmul(f"{i}.up", normed), self.weight(f"{i}.up.bias"))
            after = f"{i + 1}.norm1" if i + 1 < LAYERS else "norm"
            normed, x = self.residual(x, self.matmul(f"{i}.down", up), f"{i}.down", after)
        last = self.op("Gather", normed, self.constant("last", np.int64(-1)), axis=1)
        head = np.ascontiguousarray(make_weights("gpt2")["words"].T).astype(self.kind)
        self.outputs = {self.op("MatMul", last, self.constant("head", head)): 2, **self.outputs}

    def model(self):
        helper = self.helper
        outputs = self.outputs | dict.fromkeys(self.shared, 4)
        kind = helper.np_dtype_to_tensor_dtype(self.kind)
        graph = helper.make_graph(
            self.nodes, self.case.model,
            [helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
             for name, x in self.feeds.items()],
            [helper.make_tensor_value_info(name, kind, [None] * rank)
             for name, rank in outputs.items()], list(self.initializers.values()))
        model = helper.make_model(graph, opset_imports=[
            helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)])
        model.ir_version = 8  # of opset 17
        return model

    def quantized(self):
        """Matrices as int8 with a scale per column, activations rounded as they come."""
        from onnxruntime.quantization import QuantType, quantize_dynamic
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "int8.onnx"
            # Its own operators have no shape inference: say what their results are.
            quantize_dynamic(self.model(), path, weight_type=QuantType.QInt8, per_channel=True,
                             extra_options={"DefaultTensorType": self.onnx.TensorProto.FLOAT})
            return self.onnx.load(path)

    def session(self, ort, threads, way):
        options = ort.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        options.log_severity_level = 3
        if way == "fast math":
            options.add_session_config_entry("mlas.enable_gemm_fastmath_arm64_bfloat16", "1")
        model = self.quantized() if way == "int8" else self.model()
        return ort.InferenceSession(model.SerializeToString(), options,
                                    providers=["CPUExecutionProvider"])


def onnxruntime_variants(case, dtype, threads):
    """As torch_variants. Without bf16, as on x86, the low precisions are f16 and f32 as it is; for
    i8 they are dynamic quantisation, and f32 as it is."""
    import onnxruntime as ort

    def build(kind, attention, way=""):
        graph = Graph(case, kind, attention)
        session = graph.session(ort, threads, way)
        values = {name: ort.OrtValue.ortvalue_from_numpy(x) for name, x in graph.feeds.items()}
        binding = session.io_binding()
        for name, value in values.items():
            binding.bind_ortvalue_input(name, value)
        for name in graph.outputs:
            binding.bind_output(name)
        for name, past in graph.shared.items():
            binding.bind_ortvalue_output(name, values[past])

        def call():
            session.run_with_iobinding(binding)
            return binding.get_outputs(), values  # keeps the buffers alive
        return call

    kinds = {"f32": ("f32", "float32")}
    if dtype == "i8":
        kinds["int8"] = "i8", "float32", "int8"
    elif dtype != "f32":
        kinds["f16"] = "f16", "float16"
    if dtype == "bf16" and platform.machine() in ("aarch64", "arm64"):
        kinds["bf16 products"] = "bf16", "float32", "fast math"
    own = "MultiHeadAttention" if case.model == "bert-base" else "GroupQueryAttention"
    return [(f"{name}, {attention}", label, functools.partial(build, kind, attention, *way))
            for name, (label, kind, *way) in kinds.items()
            for attention in ("Attention", own)]
