"""All sections of the proof, in the order in which they are tried. A new one is one more line."""

from tests.prove import (
    bad_input,
    cluster,
    commit_model,
    histories,
    kills,
    schedules,
    simulation,
    soak,
    volumes,
)
from tests.prove.section import Section

SECTIONS: tuple[Section, ...] = (
    simulation.SECTION,
    kills.SECTION,
    histories.SECTION,
    schedules.SECTION,
    cluster.SECTION,
    volumes.SECTION,
    soak.SECTION,
    bad_input.SECTION,
    commit_model.SECTION,
)
