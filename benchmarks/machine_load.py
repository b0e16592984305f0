"""How busy a machine is before it measures."""

import os
import pathlib
import time

STAT = pathlib.Path("/proc/stat")
SECONDS = 1.0


def cpu_ticks():
    """(ticks of all cores that were idle, all ticks) since the machine started."""
    ticks = [int(word) for word in STAT.read_text(encoding="ascii").split("\n", 1)[0].split()[1:9]]
    return ticks[3] + ticks[4], sum(ticks)


def busy_cores():
    """How many cores work now, over a second; the load average, which lags by a minute, where Linux's /proc is not."""
    if not STAT.exists():
        return os.getloadavg()[0]
    idle, total = cpu_ticks()
    time.sleep(SECONDS)
    idle_then, total_then = cpu_ticks()
    return os.cpu_count() * (1.0 - (idle_then - idle) / max(total_then - total, 1))
