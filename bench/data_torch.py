#!/usr/bin/env python3
"""PyTorch's DataLoader over a folder of weir's shards, for `weir bench data`.   data_torch.py FOLDER BATCH CONTEXT REPS

The dataset maps the shards (numpy.memmap) and returns inputs and targets as int64 tensors, which an embedding takes. Three ways to run
it: the usual one without workers, with two, and with __getitems__, which makes a whole batch at once (the fastest that DataLoader
offers). The consumer adds up every token. One JSON object a line: name, tok_s, tokens, sum, copied_per_tok.
"""
import json
import pathlib
import sys
import time

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

HEADER = 4096


class Shards(Dataset):
    def __init__(self, folder, context):
        manifest = json.loads((pathlib.Path(folder) / "manifest.json").read_text())
        dtype = np.uint16 if manifest["token_bytes"] == 2 else np.uint32
        self.context = context
        self.maps, self.first = [], [0]
        for shard in manifest["shards"]["train"]:
            self.maps.append(np.memmap(pathlib.Path(folder) / shard["file"], dtype, "r", HEADER, (shard["tokens"],)))
            self.first.append(self.first[-1] + max(0, -(-(shard["tokens"] - 1) // context)))
        self.first = np.array(self.first)

    def __len__(self):
        return int(self.first[-1])

    def window(self, i):
        shard = int(np.searchsorted(self.first, i, "right")) - 1
        at = (i - int(self.first[shard])) * self.context
        return self.maps[shard][at:at + self.context + 1]

    def __getitem__(self, i):
        t = torch.from_numpy(self.window(i).astype(np.int64))
        return t[:-1], t[1:]


class Batches(Shards):
    """A whole batch in one array; the short last window of a shard is padded with zeros, which add nothing."""

    def __getitems__(self, indices):
        batch = np.zeros((len(indices), self.context + 1), np.int64)
        lengths = []
        for row, i in zip(batch, indices):
            w = self.window(i)
            row[:len(w)] = w
            lengths.append(len(w) - 1)
        t = torch.from_numpy(batch)
        return t[:, :-1], t[:, 1:], lengths


def short_last(samples):
    """The default collate, but windows at the end of a shard are shorter: stack those that are alike."""
    whole = [s for s in samples if len(s[0]) == len(samples[0][0])]
    rest = [s for s in samples if len(s[0]) != len(samples[0][0])]
    groups = [(torch.stack([x for x, _ in whole]), torch.stack([y for _, y in whole]))]
    return groups + [(x[None], y[None]) for x, y in rest]


def identity(x):
    return x


def main():
    folder, batch, context, reps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    torch.set_num_threads(1)
    kinds = [("DataLoader, 0 workers", Shards, short_last, 0), ("DataLoader, 2 workers", Shards, short_last, 2),
             ("DataLoader, __getitems__", Batches, identity, 0)]
    for name, cls, collate, workers in kinds:
        data = cls(folder, context)
        loader = DataLoader(data, batch_size=batch, shuffle=True, num_workers=workers, collate_fn=collate,
                            persistent_workers=workers > 0)
        best = 0.0
        for _ in range(reps + (workers > 0)):  # workers: the first epoch starts them
            tokens, total = 0, 0
            begin = time.perf_counter()
            for got in loader:
                if collate is identity:
                    x, y, lengths = got
                    total += int(x.sum()) + int(y.sum())
                    n = np.array(lengths)
                    tokens += int(n.sum())
                    if int(n.min()) < context:  # x of a padded row holds its last target too
                        total -= sum(int(x[i, k]) for i, k in enumerate(lengths) if k < context)
                else:
                    for x, y in got:
                        total += int(x.sum()) + int(y.sum())
                        tokens += x.numel()
            best = max(best, tokens / (time.perf_counter() - begin))
        # cast to int64, stacking of inputs and targets, and with workers the way through shared memory (written once)
        copied = 8 + (16 if collate is not identity else 0) + (16 if workers else 0)
        print(json.dumps({"name": name, "tok_s": best, "tokens": tokens, "sum": total, "copied_per_tok": copied}), flush=True)


main()
