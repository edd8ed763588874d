"""What tests of whole networks share."""

import torch

from burnish.noise import make_generator


def randomised(network, seed=11):
    """Parameters and running statistics from a seed, none of them near what they are initialised with."""
    generator = make_generator(seed)
    with torch.no_grad():
        for name, tensor in (*network.named_parameters(), *network.named_buffers()):
            if tensor.is_floating_point():
                values = torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
                tensor.copy_(values.abs() + 0.3 if name.endswith("running_var") else 0.6 * values)
    return network


def state_of(network):
    """All that must be the same after a function has run on a network."""
    return {
        "tensors": [tensor.detach().clone() for tensor in (*network.parameters(), *network.buffers())],
        "flags": [part.training for part in network.modules()],
        "hooks": [len(part._forward_hooks) + len(part._forward_pre_hooks) for part in network.modules()],
        "gradients": [(parameter.requires_grad, parameter.grad) for parameter in network.parameters()],
    }
