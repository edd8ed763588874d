"""Inference methods: one file each, `fit_<method>(target, start, *, options, generator) -> <Method>Fit`."""
