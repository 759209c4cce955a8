"""Results as commands write them, for the tests of pages."""

from __future__ import annotations

from typing import Any

HOSTILE = "</script><script>alert('x')</script><img src=http://evil.example/x onerror=alert(1)> & \"quotes\""


def figure(name: str, value: float, spread: float = 1.0) -> dict[str, Any]:
    return {"name": name, "value": value, "low": value - spread, "high": value + spread}


def changes(texts: tuple[str, ...] = ("good film", HOSTILE, "dull")) -> dict[str, Any]:
    answers = [("negative", "positive"), ("positive", "negative"), ("negative", "positive")]
    examples = [
        {
            "text": (text,),
            "before": before,
            "after": after,
            "before_confidence": 0.9 - 0.1 * number,
            "after_confidence": 0.55 + 0.12 * number,
            "reference": before,
        }
        for number, (text, (before, after)) in enumerate(zip(texts, answers, strict=False))
    ]
    return {"what": "answer", "compared": 60, "changed": 3, "examples": examples}


def evaluation(value: float = 88.0, *, test: str = "sst2") -> dict[str, Any]:
    gap = {**figure("accuracy", value - 90.0), "p_value": 0.03}
    return {
        "test": test,
        "examples": 60,
        "resampled": 60,
        "figures": [figure("accuracy", value)],
        "against": [figure("accuracy", 90.0)],
        "differences": [gap],
        "fidelity": [figure("agreement", 95.0), figure("divergence", 0.0123, 0.001)],
        "notes": ["the checkpoint does not name its classes."],
        "padding": 0.02,
        "seconds": 1.5,
        "forward_seconds": 1.0,
    }


STEPS = [(layer, kind, 12 if kind == "attention" else 1536) for layer in range(3) for kind in ("attention", "ffn")]


def point(reduction: float, drop: float, *, healed: bool = False) -> dict[str, Any]:
    left = 1.0 - reduction
    return {
        "kind": "point",
        "reduction": reduction,
        "healed": healed,
        "removed": reduction,
        "flops": [3e8, 3e8 * left],
        "parameters": [22_700_000, int(22_700_000 * (1 - reduction / 2))],
        "megabytes": [45.4, 45.4 * (1 - reduction / 2)],
        "milliseconds": [100.0, 100.0 * left],
        "kept": [max(1, round(units * left)) for _, _, units in STEPS],
        "errors": [[0.02 * (n + 1), 0.004 * (n + 1)] for n in range(len(STEPS))],
        "steps": [list(step) for step in STEPS],
        "drop": [drop, drop - 1.0, drop + 1.0],
        **evaluation(90.0 - drop),
        "changes": changes(),
    }


def sweep(*, healed: bool = False) -> list[dict[str, Any]]:
    header = {
        "kind": "sweep",
        "kprune": "0.2.0",
        "model": "minilm-sst2",
        "model_type": "bert",
        "test": "sst2",
        "tokens": 10_000,
        "parameters": 22_700_000,
        "megabytes": 45.4,
        "command": "kprune sweep MODEL --task sst2",
        "identity": {"settings": {"align": 16, "refit": True, "ridge": 1e-6}, "shape": [8, 128], "threads": 2},
    }
    found = [point(0.2, 0.1), point(0.5, 0.4), point(0.8, 3.0)]
    return [header, *found, *([point(0.5, 0.1, healed=True), point(0.8, 1.0, healed=True)] if healed else [])]


def pruned(name: str = "small") -> dict[str, Any]:
    steps = [
        {
            "layer": layer,
            "kind": kind,
            "units": units,
            "kept": list(range(units // 2)),
            "error_before": 0.05,
            "error_after": 0.004,
            "seconds": 1.0,
        }
        for layer, kind, units in STEPS
    ]
    return {
        "folder": name,
        "kprune": "0.2.0",
        "reduction": 0.5,
        "align": 16,
        "flops": [3e8, 1.5e8],
        "parameters": [22_700_000, 17_300_000],
        "megabytes": [45.4, 34.7],
        "examples": 300,
        "tokens": 10_000,
        "errors": [0.004] * len(STEPS),
        "total_seconds": 31.0,
        "peak_megabytes": 812.0,
        "steps": steps,
        "evaluation": evaluation(),
    }


def timing(model: str, runtime: str, milliseconds: float, speedup: float | None) -> dict[str, Any]:
    return {
        "model": model,
        "runtime": runtime,
        "batch": 32,
        "length": 128,
        "p50_ms": milliseconds,
        "p95_ms": 1.2 * milliseconds,
        "texts_per_second": 32e3 / milliseconds,
        "runs": 10,
        "speedup": speedup,
        "flops_ratio": speedup and 2.5,
    }


def bench() -> dict[str, Any]:
    timings = [timing("small", "torch", 200.0, 2.1), timing("dense", "torch", 420.0, None)]
    timings += [timing("small", "onnxruntime", 150.0, 1.9), timing("dense", "onnxruntime", 285.0, None)]
    footprint = {
        "model": "small",
        "runtime": "torch",
        "load_seconds": 0.2,
        "peak_megabytes": 90.0,
        "disk_megabytes": 34.7,
    }
    return {
        "device": "a CPU",
        "threads": 2,
        "reference": "dense",
        "timings": timings,
        "footprints": [footprint],
        "notes": [],
    }


def comparison() -> list[dict[str, Any]]:
    return [
        {
            "task": "sst2", "model": "m", "method": method, "reduction": reduction, "seed": seed, "tokens": 100,
            "limit": None, "figures": [figure("accuracy", 90 - 20 * reduction - seed - 3 * number)],
            "against": [figure("accuracy", 90.0)], "fidelity": [figure("agreement", 95.0)],
        }
        for number, method in enumerate(("kprune", "random"))
        for reduction in (0.4, 0.8)
        for seed in (0, 1)
    ]  # fmt: skip


def inspection() -> dict[str, Any]:
    return {
        "model_type": "bert",
        "shape": {"heads": [6, 4], "neurons": [48, 16], "dense_heads": 12, "dense_neurons": 64},
        "length": 33.0,
        "flops": (3e8, 1e8),
        "parameters": (1000, 500),
        "bytes_on_disk": 12_000,
        "history": [{"reduction": 0.6, "align": 1, "errors": [0.1, 0.2, 0.3, 0.4]}],
    }
