"""The peer of `bench-models --gpu`: an ONNX file with its weights in PyTorch, replayed as a CUDA graph.

Reads requests, one JSON object a line, and answers each with one: experiments/bench-models/README.md has
them. Needs torch alone. Messages and field numbers are those of onnx.proto3, IR version 8. Left out: batches
above 1, dynamic shapes, several inputs.
"""

import argparse
import gc
import struct
import sys
import time

import torch
import torch._dynamo
import torch._inductor.config
import torch.nn.functional as F

from line_protocol import median, serve

# ---- the file ----


def fields(message):
    """Number and value of each field of a protocol buffer's message: int, or the bytes of all else."""
    at = 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(message):
        key = varint()
        kind = key & 7
        if kind == 0:
            yield key >> 3, varint()
            continue
        if kind not in (1, 2, 5):
            raise ValueError(f"wire type {kind} at byte {at}: this is no ONNX file")
        size = {1: 8, 5: 4}.get(kind) or varint()
        if at + size > len(message):
            raise ValueError(f"a field of {size} bytes at byte {at} of {len(message)}: the file was cut")
        yield key >> 3, message[at : at + size]
        at += size


def gathered(message):
    """All values of each field."""
    found = {}
    for number, value in fields(message):
        found.setdefault(number, []).append(value)
    return found


def signed(value):
    return value - (1 << 64) if value >> 63 else value


def whole_numbers(values):
    """Of a repeated field, packed or not."""
    found = []
    for value in values:
        if isinstance(value, int):
            found.append(signed(value))
            continue
        shift = number = 0
        for byte in value:
            number |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                found.append(signed(number))
                shift = number = 0
    return found


def texts(values):
    return [bytes(value).decode() for value in values]


def real(value):
    return struct.unpack("<f", value)[0]


def tensor(message):
    """Name and value of a TensorProto."""
    found = gathered(message)
    name = "".join(texts(found.get(8, [])))
    kind = found.get(2, [0])[0]
    types = {1: (torch.float32, 4), 7: (torch.int64, 7)}
    if kind not in types:
        raise ValueError(f"constant {name}: elements of ONNX type {kind}; known are f32 (1) and i64 (7)")
    element, own = types[kind]
    if 9 in found:
        flat = torch.frombuffer(bytearray(found[9][0]), dtype=element)
    elif kind == 7:
        flat = torch.tensor(whole_numbers(found.get(own, [])), dtype=element)
    else:
        packed = b"".join(bytes(value) for value in found.get(own, []))
        flat = torch.frombuffer(bytearray(packed), dtype=element)
    return name, flat.reshape(whole_numbers(found.get(1, [])))


def attribute(message):
    """Name and value of an AttributeProto, by its own word for its type."""
    found = gathered(message)
    name, kind = texts(found[1])[0], found.get(20, [0])[0]
    values = {
        # proto3 leaves a value of zero out.
        1: lambda: real(found[2][0]) if 2 in found else 0.0,
        2: lambda: signed(found.get(3, [0])[0]),
        3: lambda: texts(found[4])[0],
        4: lambda: tensor(found[5][0])[1],
        6: lambda: [real(value[at : at + 4]) for value in found.get(7, []) for at in range(0, len(value), 4)],
        7: lambda: whole_numbers(found.get(8, [])),
    }
    if kind not in values:
        raise ValueError(f"attribute {name}: ONNX type {kind} is not read")
    return name, values[kind]()


class Node:
    def __init__(self, message):
        found = gathered(message)
        self.inputs, self.outputs = texts(found.get(1, [])), texts(found.get(2, []))
        self.operator = texts(found[4])[0]
        self.attributes = dict(attribute(value) for value in found.get(5, []))


def read(path):
    """Nodes, constants by name, and the names and shapes of the one input and of the one output."""
    with open(path, "rb") as file:
        model = gathered(memoryview(file.read()))
    if 7 not in model:
        raise ValueError(f"{path}: no graph in it")
    graph = gathered(model[7][0])
    constants = dict(tensor(value) for value in graph.get(5, []))
    ends = []
    for number in (11, 12):
        values = [gathered(value) for value in graph.get(number, [])]
        values = [(texts(value[1])[0], value) for value in values]
        values = [value for name, value in values if name not in constants]
        if len(values) != 1:
            count = f"{len(values)} values of field {number}"
            raise ValueError(f"{path}: {count}; one input and one output are possible")
        kind = gathered(gathered(values[0][2][0])[1][0])
        extents = [gathered(extent) for extent in gathered(kind[2][0]).get(1, [])]
        ends.append((texts(values[0][1])[0], [extent.get(1, [1])[0] for extent in extents]))
    return [Node(value) for value in graph.get(1, [])], constants, ends[0], ends[1]


# ---- the network ----


def before_and_behind(attributes, data, kernel):
    """Padding of an image that PyTorch takes, and the image, padded already where PyTorch takes none such."""
    if attributes.get("auto_pad", "NOTSET") != "NOTSET":
        raise ValueError("auto_pad is not possible; give pads")
    top, left, bottom, right = attributes.get("pads", [0] * 4)
    if (top, left) == (bottom, right):
        return data, (top, left)
    if kernel is not None:
        raise ValueError("a pool with other pads behind than before is not possible")
    return F.pad(data, (left, right, top, bottom)), (0, 0)


def convolution(a, data, weights, bias=None):
    data, pads = before_and_behind(a, data, None)
    strides, dilations = a.get("strides", [1, 1]), a.get("dilations", [1, 1])
    return F.conv2d(data, weights, bias, strides, pads, dilations, a.get("group", 1))


def product(a, data, weights, bias=None):
    if a.get("transA", 0) or a.get("alpha", 1.0) != 1.0 or a.get("beta", 1.0) != 1.0:
        raise ValueError("Gemm with transA, alpha or beta is not possible")
    return F.linear(data, weights if a.get("transB", 0) else weights.t(), bias)


def max_pool(a, data):
    kernel = a["kernel_shape"]
    data, pads = before_and_behind(a, data, kernel)
    dilations, ceil = a.get("dilations", [1, 1]), bool(a.get("ceil_mode", 0))
    return F.max_pool2d(data, kernel, a.get("strides", [1, 1]), pads, dilations, ceil)


def average_pool(a, data):
    kernel = a["kernel_shape"]
    data, pads = before_and_behind(a, data, kernel)
    ceil, count = bool(a.get("ceil_mode", 0)), bool(a.get("count_include_pad", 0))
    return F.avg_pool2d(data, kernel, a.get("strides", [1, 1]), pads, ceil, count)


def batch_norm(a, data, scale, shift, mean, variance):
    return F.batch_norm(data, mean, variance, scale, shift, False, 0.0, a.get("epsilon", 1e-5))


def hard_sigmoid(a, data):
    alpha, beta = a.get("alpha", 0.2), a.get("beta", 0.5)
    if abs(alpha - 1 / 6) < 1e-6 and beta == 0.5:
        return F.hardsigmoid(data)
    return torch.clamp(alpha * data + beta, 0, 1)


def depth_to_space(a, data):
    if a.get("mode", "DCR") != "CRD":
        raise ValueError("DepthToSpace of mode DCR is no pixel shuffle")
    return F.pixel_shuffle(data, a["blocksize"])


OPERATORS = {
    "Add": lambda a, one, other: one + other,
    "AveragePool": average_pool,
    "BatchNormalization": batch_norm,
    "Clip": lambda a, data, low=None, high=None: torch.clamp(data, a.get("min", low), a.get("max", high)),
    "Concat": lambda a, *parts: torch.cat(parts, a["axis"]),
    "Conv": convolution,
    "DepthToSpace": depth_to_space,
    "Div": lambda a, one, other: one / other,
    "Dropout": lambda a, data, *rest: data,
    "Flatten": lambda a, data: torch.flatten(data, a.get("axis", 1)),
    "Gemm": product,
    "GlobalAveragePool": lambda a, data: F.adaptive_avg_pool2d(data, 1),
    "HardSigmoid": hard_sigmoid,
    "HardSwish": lambda a, data: F.hardswish(data),
    "Identity": lambda a, data: data,
    "MatMul": lambda a, one, other: one @ other,
    "MaxPool": max_pool,
    "Mul": lambda a, one, other: one * other,
    "ReduceMean": lambda a, data: data.mean(a["axes"], keepdim=bool(a.get("keepdims", 1))),
    "Relu": lambda a, data: F.relu(data),
    "Reshape": lambda a, data, shape: data.reshape(shape),
    "Sigmoid": lambda a, data: torch.sigmoid(data),
    "Softmax": lambda a, data: F.softmax(data, a.get("axis", -1)),
}


class Network(torch.nn.Module):
    """The file's nodes in their order. Constants of f32 are parameters, whole numbers are Python's."""

    def __init__(self, path):
        super().__init__()
        nodes, constants, (self.source, self.shape), (self.sink, _) = read(path)
        self.places, self.whole, self.steps = {}, {}, []
        for name, value in constants.items():
            self.keep(name, value)
        for node in nodes:
            if node.operator == "Constant":
                self.keep(node.outputs[0], node.attributes["value"])
            elif node.operator not in OPERATORS:
                known = ", ".join(sorted(OPERATORS))
                raise ValueError(f"{path}: operator {node.operator} is not known; known are {known}")
            else:
                self.steps.append((OPERATORS[node.operator], node.attributes, node.inputs, node.outputs[0]))

    def keep(self, name, value):
        if value.dtype == torch.int64:
            self.whole[name] = value.tolist()
            return
        self.places[name] = f"constant_{len(self.places)}"
        self.register_parameter(self.places[name], torch.nn.Parameter(value.clone(), requires_grad=False))

    def forward(self, data):
        values = {"": None, self.source: data, **self.whole}
        for operator, attributes, inputs, output in self.steps:
            given = [getattr(self, self.places[name]) if name in self.places else values[name] for name in inputs]
            values[output] = operator(attributes, *given)
        return values[self.sink]


# ---- one way to run it ----


class Way:
    """A network in one precision, eager or compiled and frozen, in one layout, captured."""

    def __init__(self, path, precision, way, device):
        kind, _, layout = way.partition("-")
        if kind not in ("eager", "compiled") or layout not in ("nchw", "nhwc"):
            raise ValueError(f"way {way} is not eager or compiled, -nchw or -nhwc")
        if precision not in ("fp32", "tf32", "fp16"):
            raise ValueError(f"precision {precision} is not fp32, tf32 or fp16")
        torch.backends.cudnn.benchmark = True
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
        self.on_gpu = device != "cpu"
        network = Network(path).eval().to(device)
        order = torch.channels_last if layout == "nhwc" else torch.contiguous_format
        half = torch.float16 if precision == "fp16" else torch.float32
        self.call = network.to(half).to(memory_format=order)
        # An image of one channel lies the same in both orders. Its strides differ, which a compiler compares.
        self.input = torch.empty(network.shape, dtype=half, device=device, memory_format=order).zero_()
        if kind == "compiled":
            torch._inductor.config.freezing = True
            # Kernels are compiled by threads of this process. Those that its pool of processes compiles are
            # compiled again here, one after another, before they are timed (torch 2.11).
            torch._inductor.config.compile_threads = 1
            # The way before had other strides: without `dynamic=False` sizes would be taken for variables.
            self.call = torch.compile(
                self.call, mode="max-autotune-no-cudagraphs", fullgraph=True, dynamic=False
            )
        since = time.monotonic()
        self.capture()
        self.seconds = time.monotonic() - since

    def capture(self):
        """Compiles, lets cuDNN choose, and captures. What runs before a capture has a stream of its own."""
        with torch.no_grad():
            if not self.on_gpu:
                self.output = self.call(self.input)
                return
            beside = torch.cuda.Stream()
            beside.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(beside):
                for _ in range(5):
                    self.call(self.input)
            torch.cuda.current_stream().wait_stream(beside)
            torch.cuda.synchronize()
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.output = self.call(self.input)
            torch.cuda.synchronize()

    def replay(self):
        if self.on_gpu:
            self.graph.replay()
        else:
            with torch.no_grad():
                self.output = self.call(self.input)

    def wait(self):
        if self.on_gpu:
            torch.cuda.synchronize()

    def times(self, replays, seconds):
        """Microseconds of each replay, so many between two synchronisations, for so long."""
        found, until = [], time.monotonic() + seconds
        while not found or time.monotonic() < until:
            since = time.monotonic_ns()
            for _ in range(replays):
                self.replay()
            self.wait()
            found.append((time.monotonic_ns() - since) / replays / 1000)
        return found

    def kernels(self, replays):
        """Name and mean microseconds of each kernel of a replay, in their order, by CUPTI; so many replays."""
        if not self.on_gpu:
            raise ValueError("kernels are those of a GPU")
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            for _ in range(replays):
                self.replay()
            self.wait()
        on_gpu = [event for event in profile.events() if event.device_type == torch.autograd.DeviceType.CUDA]
        on_gpu.sort(key=lambda event: event.time_range.start)
        count = len(on_gpu) // replays
        if count == 0 or len(on_gpu) != count * replays:
            raise ValueError(f"{len(on_gpu)} kernels were seen in {replays} replays")
        alike = [on_gpu[at::count] for at in range(count)]
        mean = [sum(event.time_range.elapsed_us() for event in events) / replays for events in alike]
        return [[events[0].name, round(time, 2)] for events, time in zip(alike, mean)]

    def compute(self, source, sink):
        with open(source, "rb") as file:
            given = bytearray(file.read())
        if len(given) != 4 * self.input.numel():
            wanted = 4 * self.input.numel()
            raise ValueError(f"{source}: {len(given)} bytes, the network's input has {wanted}")
        given = torch.frombuffer(given, dtype=torch.float32)
        self.input.copy_(given.reshape(self.input.shape))
        self.replay()
        self.wait()
        found = self.output.detach().float().cpu().contiguous().flatten()
        with open(sink, "wb") as file:
            file.write(struct.pack(f"<{found.numel()}f", *found.tolist()))


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    arguments.add_argument("--replays", type=int, default=100, help="between two synchronisations")
    options = arguments.parse_args()
    ways = {}

    def answer(asked):
        if asked["do"] == "forget":
            # In this order: a graph that is replayed reads weights that its compiled code owns.
            ways.clear()
            torch._dynamo.reset()
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            return {}
        if asked["do"] == "prepare":
            ways[asked["way"]] = way = Way(asked["file"], asked["precision"], asked["way"], options.device)
            return {"prepare_s": way.seconds}
        way = ways.get(asked["way"])
        if way is None:
            raise ValueError(f"way {asked['way']} was not prepared")
        if asked["do"] == "time":
            way.times(options.replays, asked["seconds"] / 4)
            periods = way.times(options.replays, asked["seconds"] / 2)
            alone = way.times(1, asked["seconds"] / 4)
            return {"period_us": median(periods), "alone_us": median(alone), "batches": len(periods)}
        if asked["do"] == "kernels":
            return {"kernels_us": way.kernels(options.replays)}
        if asked["do"] == "output":
            way.compute(asked["input"], asked["output"])
            return {}
        raise ValueError(f"there is no request {asked['do']}; there are forget, prepare, time, kernels, output, quit")

    has_gpu = options.device == "cpu" or torch.cuda.is_available()
    device = torch.cuda.get_device_name() if has_gpu and options.device != "cpu" else options.device
    cudnn = torch.backends.cudnn.version() if has_gpu and options.device != "cpu" else None
    versions = {"torch": torch.__version__, "torch-cuda": str(torch.version.cuda), "torch-cudnn": str(cudnn)}
    problem = None if has_gpu else "torch finds no GPU"
    serve({"versions": versions, "device": device, "error": problem}, answer)


if __name__ == "__main__":
    sys.exit(main())
