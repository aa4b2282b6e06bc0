"""Many seeds of the simulator: `python sweep.py --seeds 100 --hours 1 --nodes 200`.

A violation ends it with the seed, the moment and the line that replays it.
"""

from __future__ import annotations

import logging
import time

import click

from llmgw.simulate import FAULTS, World, WorldSize


@click.command()
@click.option("--seeds", default=100, show_default=True)
@click.option("--first", default=1, show_default=True, help="The first seed.")
@click.option("--hours", default=1.0, show_default=True)
@click.option("--nodes", default=200, show_default=True)
@click.option("--devices", default=4, show_default=True, help="Of each node.")
@click.option("--models", default=40, show_default=True)
def main(seeds: int, first: int, hours: float, nodes: int, devices: int, models: int) -> None:
    logging.disable(logging.CRITICAL)  # what simulated operators would read
    size = WorldSize(nodes=nodes, devices=devices, models=models, hours=hours)
    for seed in range(first, first + seeds):
        began = time.process_time()
        outcome = World(size, seed=seed, faults=FAULTS).run()
        took_s = time.process_time() - began
        click.echo(
            f"seed {seed}: {outcome.faults} faults, {outcome.events} events, "
            f"{outcome.passes} passes, history {outcome.history:08x}, {took_s:.1f} s of CPU"
        )


if __name__ == "__main__":
    main()
