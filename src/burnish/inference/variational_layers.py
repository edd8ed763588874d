"""Layers whose weights are independent Gaussians, and three ways to draw them: Flipout, local, plain."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from burnish._checks import check_choice, check_positive
from burnish.noise import check_generator

__all__ = ["VariationalConv2d", "VariationalLayer", "VariationalLinear"]

ESTIMATORS = ("flipout", "local", "plain")


class VariationalLayer(nn.Module):
    """A layer whose weight and bias are independent Gaussians; std is the softplus of `raw_std`.

    In eval mode it uses the means. In train mode each call draws from `generator`, by one of the estimators:

    - "flipout": one perturbation for the batch, with random signs for the inputs and outputs of each point. Each point sees
      an exact sample of the weights, the same one at all its locations, and no two points' perturbations correlate. In
      small batches its gradients by the standard deviations can be noisier than plain ones.
    - "local": draws outputs instead of weights, which is less noisy still, but exact only where a weight is used once for
      each point: linear layers on inputs (N, P). A convolution uses it at every location, and drawing outputs would treat
      the locations as independent: refused.
    - "plain": one sample of the weights for the whole batch; for comparison.

    Calls are independent: a layer that a network calls twice in one pass has different weights each time.
    """

    weight_mean: nn.Parameter
    weight_raw_std: nn.Parameter
    bias_mean: nn.Parameter | None
    bias_raw_std: nn.Parameter | None
    channel_axis: int
    """Where inputs and outputs have their channels, from the end: with points in front, there is one axis more."""

    def __init__(
        self,
        layer: nn.Linear | nn.Conv2d,
        initial_std: float,
        *,
        generator: torch.Generator,
        estimator: str = "flipout",
    ) -> None:
        super().__init__()
        check_positive("initial_std", initial_std, "It is the standard deviation of each weight at the start.")
        check_choice("estimator", estimator, ESTIMATORS)
        check_generator(generator, layer.weight.device)
        self.estimator, self.generator = estimator, generator
        raw_std = initial_std + math.log(-math.expm1(-initial_std))  # the inverse of softplus, also for small values
        for name, value in (("weight", layer.weight), ("bias", layer.bias)):
            mean = None if value is None else nn.Parameter(value.detach().clone())
            self.register_parameter(f"{name}_mean", mean)
            self.register_parameter(
                f"{name}_raw_std", None if mean is None else nn.Parameter(torch.full_like(mean, raw_std))
            )

    def transform(self, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The layer with given parameters."""
        raise NotImplementedError

    def moments(self) -> dict[str, tuple[Tensor, Tensor]]:
        """Mean and std of the weight and, where there is one, of the bias."""
        found: dict[str, tuple[Tensor, Tensor]] = {"weight": (self.weight_mean, functional.softplus(self.weight_raw_std))}
        if self.bias_mean is not None and self.bias_raw_std is not None:
            found["bias"] = (self.bias_mean, functional.softplus(self.bias_raw_std))
        return found

    def forward(self, inputs: Tensor) -> Tensor:
        """Outputs for one batch of inputs, or for one point."""
        if not self.training:
            return self.transform(inputs, self.weight_mean, self.bias_mean)
        if self.estimator == "local":
            return self._sample_outputs(inputs)
        shift = {name: std * self._normal(std) for name, (_, std) in self.moments().items()}
        if self.estimator == "plain":
            bias = None if self.bias_mean is None else self.bias_mean + shift["bias"]
            return self.transform(inputs, self.weight_mean + shift["weight"], bias)
        outputs = self.transform(inputs, self.weight_mean, self.bias_mean)
        flipped = self.transform(inputs * self._signs(inputs), shift["weight"], shift.get("bias"))
        return outputs + self._signs(outputs) * flipped

    def extra_repr(self) -> str:
        """Shape of the weight and the estimator."""
        return f"{tuple(self.weight_mean.shape)}, bias={self.bias_mean is not None}, estimator={self.estimator!r}"

    def _sample_outputs(self, inputs: Tensor) -> Tensor:
        if inputs.ndim > 2:
            raise ValueError(
                f"`estimator` 'local' needs inputs of shape (N, P) for linear layers, got {tuple(inputs.shape)}, where all "
                "positions of a point share the weights. Use estimator='flipout'."
            )
        variances = {name: std**2 for name, (_, std) in self.moments().items()}
        mean = self.transform(inputs, self.weight_mean, self.bias_mean)
        variance = self.transform(inputs**2, variances["weight"], variances.get("bias"))
        # inputs of zero have outputs without variance, where the square root has no finite derivative
        std = variance.clamp_min(torch.finfo(variance.dtype).tiny).sqrt()
        return mean + std * self._normal(std)

    def _normal(self, like: Tensor) -> Tensor:
        return torch.randn(like.shape, generator=self.generator, dtype=like.dtype, device=like.device)

    def _signs(self, like: Tensor) -> Tensor:
        """One sign for each channel of each point, the same at all locations."""
        shape = [1] * like.ndim
        shape[self.channel_axis] = like.shape[self.channel_axis]
        if like.ndim > -self.channel_axis:
            shape[0] = len(like)
        coins = torch.randint(2, shape, generator=self.generator, device=like.device)
        return (2 * coins - 1).to(like.dtype)


class VariationalLinear(VariationalLayer):
    """`nn.Linear` with Gaussian weights around those of `layer`."""

    channel_axis = -1

    def transform(self, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The layer with given parameters."""
        return functional.linear(inputs, weight, bias)


class VariationalConv2d(VariationalLayer):
    """`nn.Conv2d` with Gaussian weights around those of `layer`, and its stride, padding, dilation and groups."""

    channel_axis = -3

    def __init__(
        self, layer: nn.Conv2d, initial_std: float, *, generator: torch.Generator, estimator: str = "flipout"
    ) -> None:
        if estimator == "local":
            raise ValueError(
                "`estimator` must be 'flipout' or 'plain' where there are convolutions, got 'local', which would treat the "
                "locations of an image as independent. Use estimator='flipout'."
            )
        super().__init__(layer, initial_std, generator=generator, estimator=estimator)
        self.stride, self.dilation, self.groups = layer.stride, layer.dilation, layer.groups
        self.padding_mode, padded = layer.padding_mode, layer.padding_mode != "zeros"
        self.margins = tuple(layer._reversed_padding_repeated_twice) if padded else ()
        self.padding: str | tuple[int, ...] = 0, 0
        if not padded:
            self.padding = layer.padding

    def transform(self, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The layer with given parameters."""
        if self.margins:
            inputs = functional.pad(inputs, self.margins, mode=self.padding_mode)
        return functional.conv2d(inputs, weight, bias, self.stride, self.padding, self.dilation, self.groups)
