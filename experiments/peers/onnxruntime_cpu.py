"""The peer of `bench-models` on the processor: an ONNX file in ONNX Runtime, called from Python.

Takes the requests of compiled_graph.py. The one way is `python`, and a time is that of one call with its
inputs and outputs. Needs onnxruntime and numpy.
"""

import os
import sys
import time

from line_protocol import median, serve


def runtime():
    """ONNX Runtime of DOORBELL_WHEEL, which our engine loads too, or else the Python's own."""
    wheel = os.environ.get("DOORBELL_WHEEL")
    if wheel:
        sys.path.insert(0, wheel)
        try:
            import onnxruntime
        except ImportError as error:
            # It is not there, or is for another Python.
            print(f"{wheel}: {error}", file=sys.stderr)
            for name in [name for name in sys.modules if name.partition(".")[0] == "onnxruntime"]:
                del sys.modules[name]
        finally:
            # Its other packages come after the Python's own.
            sys.path.remove(wheel)
            sys.path.append(wheel)
    import onnxruntime

    return onnxruntime


def main():
    try:
        import numpy

        onnxruntime = runtime()
    except ImportError as error:
        install = "python3 -m venv V && V/bin/pip install numpy, and --python V/bin/python"
        remedy = f"{error}; `cargo xtask setup` brings ONNX Runtime; for numpy: {install}"
        serve({"versions": {}, "error": remedy}, lambda asked: {})
        return
    known = {}

    def answer(asked):
        if asked["do"] == "forget":
            known.clear()
            return {}
        if asked["do"] == "prepare":
            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = asked["threads"]
            options.inter_op_num_threads = 1
            since = time.monotonic()
            session = onnxruntime.InferenceSession(asked["file"], options, providers=["CPUExecutionProvider"])
            known["session"], known["input"] = session, session.get_inputs()[0]
            return {"prepare_s": time.monotonic() - since}
        session, input = known["session"], known["input"]
        if asked["do"] == "output":
            known["given"] = numpy.fromfile(asked["input"], dtype="<f4").reshape(input.shape)
            session.run(None, {input.name: known["given"]})[0].tofile(asked["output"])
            return {}
        if asked["do"] != "time":
            known_requests = "forget, prepare, output, time, quit"
            raise ValueError(f"there is no request {asked['do']}; there are {known_requests}")
        given, found, since = {input.name: known["given"]}, [], time.monotonic()
        while not found or time.monotonic() < since + asked["seconds"]:
            start = time.monotonic_ns()
            session.run(None, given)
            # The first quarter warms up.
            if time.monotonic() >= since + asked["seconds"] / 4 or not found:
                found.append((time.monotonic_ns() - start) / 1000)
        return {"period_us": median(found), "alone_us": median(found), "batches": len(found)}

    serve({"versions": {"onnxruntime-python": onnxruntime.__version__}, "error": None}, answer)


if __name__ == "__main__":
    sys.exit(main())
