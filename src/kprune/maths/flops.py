"""Floating-point operations of a unit, by the paper's measure."""


def unit_flops(weights: int, length: float, attended: int = 0, *, causal: bool = False) -> float:
    """FLOPs of one unit on one input of `length` tokens: 2·s·weights + 4·pairs·attended.

    `weights` counts the entries of every projection that belong to the unit: 4·d·d_h for a head, 2·d for a neuron, 3·d
    for a gated neuron. `attended` is d_h for a head, whose queries meet keys and whose probabilities weigh values, and
    0 for a neuron. The pairs of query and key are s², or s·(s + 1)/2 with causal attention. That is the paper's
    8·s·d·d_h + 4·s²·d_h per head and 4·s·d per neuron; a multiply and an add count as two; biases, norms, softmax,
    embeddings and the task's head are left out.
    """
    pairs = length * (length + 1) / 2 if causal else length * length
    return 2.0 * length * weights + 4.0 * pairs * attended
