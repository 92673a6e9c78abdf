"""What a run of weir train left in its folder."""
import array, glob, json, math, os, re, struct

from harness import check


def lines(out):
    """the steps of metrics.jsonl"""
    with open(out + "/metrics.jsonl") as f:
        return [m for m in map(json.loads, f) if "step" in m and "event" not in m]


def checkpoints(out):
    return sorted(int(os.path.basename(p)[5:]) for p in glob.glob(out + "/checkpoints/step-*") if re.fullmatch(r"step-\d+", os.path.basename(p)))


def weights(out, step=None):
    """tensors of a checkpoint's model.gguf by name, FP32, read by hand"""
    path = "%s/checkpoints/step-%d/model.gguf" % (out, step if step is not None else checkpoints(out)[-1])
    b = open(path, "rb").read()
    at = 24
    n_tensors, n_meta = struct.unpack_from("<QQ", b, 8)

    def text():
        nonlocal at
        n, = struct.unpack_from("<Q", b, at)
        at += 8 + n
        return b[at - n:at].decode()

    def value(kind):
        nonlocal at
        if kind == 8:
            text()
        elif kind == 9:
            inner, n = struct.unpack_from("<IQ", b, at)
            at += 12
            for _ in range(n):
                value(inner)
        else:
            at += (1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8)[kind]

    for _ in range(n_meta):
        text()
        kind, = struct.unpack_from("<I", b, at)
        at += 4
        value(kind)
    infos = []
    for _ in range(n_tensors):
        name = text()
        n_dims, = struct.unpack_from("<I", b, at)
        dims = struct.unpack_from("<%dQ" % n_dims, b, at + 4)
        kind, offset = struct.unpack_from("<IQ", b, at + 4 + 8 * n_dims)
        at += 16 + 8 * n_dims
        infos.append((name, math.prod(dims), offset))
        check(kind == 0, "%s of a checkpoint is not F32" % name)
    start = (at + 31) // 32 * 32
    return {name: array.array("f", b[start + offset:start + offset + 4 * n]) for name, n, offset in infos}
