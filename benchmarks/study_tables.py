"""What stands below the tables of the studies: how the numbers came about, and those that the tables leave out."""

from collections.abc import Callable
from typing import Any

from burnish.studies.all_layer import by_posterior

__all__ = ["NOTES"]


def logistic_integral(record: dict[str, Any]) -> str:
    """The grid, the judge, the repetitions, and where probit is worst."""
    config, results = record["config"], record["results"]
    mean, std = results["probit"]["at"]
    return (
        f"m in [{-config['width']:g}, {config['width']:g}] and s in (0, {config['width']:g}], {results['grid']['cells']:,} "
        f"cells, each with draws of its own; {config['num_repetitions']} repetitions of the whole grid; errors by the "
        f"trapezoid rule with {config['num_points']:,} points. Numbers of draws are looked at ten to a decade, up to "
        f"{config['max_samples']:,}. Probit is worst at m = {mean:g}, s = {std:g}."
    )


def linearised_vs_mc(record: dict[str, Any]) -> str:
    """The problem, the mode, the judge, and how wide each predictive is."""
    config, results = record["config"], record["results"]
    mode, judge, stds = results["mode"], results["hmc"], results["mean_std"]
    modes = ", ".join(f"{value:.2f}" for value in mode["log_probs"])
    widths = "; ".join(f"{name} {part['all']:.2f} ({part['among']:.2f})" for name, part in stds.items())
    return (
        f"{config['num_points']} points with noise of {config['noise']:g}, {config['width']} hidden units "
        f"({mode['parameters']} parameters), prior precision {config['prior_precision']:g}, "
        f"{config['num_samples']:,} draws. "
        f"Of {config['num_restarts']} starts, {len(mode['log_probs'])} led to a positive definite Hessian, "
        "with log densities "
        f"{modes}; the highest is used. The smallest eigenvalue of its precision matrix is "
        f"{mode['smallest_eigenvalue']:.2f}; of the prior's alone it is {mode['prior_precision']:g}. Mean "
        "predictive standard "
        f"deviation over the grid (among the data): {widths}. HMC: {judge['draws']:,} draws of "
        f"{config['num_chains']} chains, "
        f"R-hat at most {judge['rhat_predictions']:.3f} for predictions and {judge['rhat_weights']:.3f} for weights, "
        f"{judge['divergences']} divergent trajectories."
    )


def mpa_vs_mc(record: dict[str, Any]) -> str:
    """The problem, what near and far mean, and the distances between the predictives."""
    config, results = record["config"], record["results"]
    lines = []
    for prior in results["priors"]:
        pairs = "; ".join(f"{' and '.join(row['pair'])} {row['all']:.3f} ({row['near']:.3f})" for row in prior["distances"])
        eigenvalue = prior["mode"]["smallest_eigenvalue"]
        lines.append(f"precision {prior['precision']:g} (smallest eigenvalue of the Hessian {eigenvalue:.2f}): {pairs}")
    return (
        f"{config['num_classes']} classes, {config['num_points']} training and {config['num_test']} test "
        "points, two hidden "
        f"layers of {config['width']} units ({results['parameters']} parameters), {config['num_samples']:,} "
        "draws. Near: at "
        f"most {config['near']:g} from a training point; far: at least {config['far']:g} from all. Mean total variation "
        f"distance over the grid (near the data), {'. '.join(lines).replace('. p', '. P')}."
    )


def toy_logistic(record: dict[str, Any]) -> str:
    """What is compared, for how many data sets the refined posterior is as close as HMC, and how good HMC is."""
    config, results = record["config"], record["results"]
    checks, runs = results["checks"], [fit for row in results["datasets"] for fit in row["hmc"]]
    count = checks["datasets"]
    return (
        f"{count} data sets of {config['num_points']} points, prior precision {config['prior_precision']:g}; "
        "LA stands where "
        f"training with weight decay {config['weight_decay']:g} ends. {results['num_draws']} draws against as "
        "many; both MMDs "
        f"are means over {results['num_sets']} such sets of each data set. The bandwidth is the median distance of HMC's "
        "draws, the same for all rows of a data set. The range is that of the unbiased MMD between random "
        "halves of two runs "
        "of HMC; the fourth column is about one set of each data set, the fifth about all sets. Refined, less HMC against "
        f"HMC: at most {checks['margin']:g} for {checks['within_margin']} of {count} data sets (the largest difference is "
        f"{checks['largest_excess']:.4f}), and by one set of draws alone for {checks['first_within_margin']} "
        f"of {count}. HMC: "
        f"R-hat at most {max(fit['rhat'] for fit in runs):.4f}, at least "
        f"{min(fit['ess_bulk'] for fit in runs):,.0f} effective "
        f"draws of which {max(fit['used'] for fit in runs):,} are used."
    )


def all_layer(record: dict[str, Any]) -> str:
    """Which priors the paper's base has, and how far HMC, which judges, can be relied on."""
    groups, judge = by_posterior(record), record["judge"]
    chosen = ", ".join(f"{row['base_precision']:,.0f}" for row in groups["paper: Laplace"])

    def each(key: str, form: str) -> str:
        return ", ".join(f"{row[key]:{form}}" for row in groups["HMC"])

    return (
        f"Prior precisions chosen for the paper's base, by network: {chosen}."
        f"\n\nThe posterior is the same for all networks, so the judge is all runs of HMC together, NLL {judge['nll']:.4f}: "
        f"{each('draws', 'd')} draws of {record['config']['num_chains']} chains each. Runs that began at different networks "
        f"have NLLs of {each('nll', '.4f')}, and their predictions differ by {min(judge['between']):.4f} to "
        f"{max(judge['between']):.4f} (total variation, mean over test points). Over all chains, and of the first "
        f"{judge['num_followed']} test points, R-hat of the mean log probability is {judge['nll_rhat']:.3f} (effective "
        f"sample size {judge['nll_ess']:.0f}), of the probability of one of them {judge['predictive_rhat_median']:.3f} in "
        f"the median and at most {judge['predictive_rhat']:.2f} (effective sample sizes "
        f"{judge['predictive_ess_median']:.0f} and at least {judge['predictive_ess']:.0f}). "
        f"R-hat of weights, by run: at most {each('rhat', '.2f')}, on average {each('mean_rhat', '.3f')}. "
        f"Products in TF32 move the log density by {each('energy_error', '.2f')} nats, as the "
        "standard deviation between chains."
    )


NOTES: dict[str, Callable[[dict[str, Any]], str]] = {
    "logistic-integral": logistic_integral,
    "linearised-vs-mc": linearised_vs_mc,
    "mpa-vs-mc": mpa_vs_mc,
    "toy-logistic": toy_logistic,
    "all-layer": all_layer,
}
