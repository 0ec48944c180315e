"""Out of core and on Dask: three million flights.

The rows are Parquet files and may be more than memory holds. Name the columns, pass the folder, and nothing else
changes.

Every flight has a probability of being 15 minutes late, from a small model of the hour, the weekday and the
distance. It knows nothing of places. Which airports and destinations does it get wrong?

Data: 3 million flights of the US Bureau of Transportation Statistics (January to March 2001, public domain), from
vega-datasets.
"""

# %%
# ## Score the rows batch by batch
#
# One third of the flights, drawn at random, is for the audit. No more than 250,000 rows are in memory at a time.
import os
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import lowcal

DATA = Path(os.environ.get("LOWCAL_DATA", "../shared/data"))
flights = pq.ParquetFile(DATA / "flights_3m.parquet")
columns = ["hour", "dow", "distance", "origin", "dest_state", "late15"]
temporary = tempfile.TemporaryDirectory()
folder = Path(temporary.name)
rng = np.random.default_rng(0)


def known(batch):
    return np.column_stack([batch["hour"], batch["dow"], batch["distance"]]).astype(float)


first = next(flights.iter_batches(200_000, columns=columns))
model = make_pipeline(StandardScaler(), LogisticRegression()).fit(known(first), first["late15"].to_numpy())
for k, batch in enumerate(flights.iter_batches(250_000, columns=columns)):
    table = pa.Table.from_batches([batch]).replace_schema_metadata(None)
    table = table.append_column("p", pa.array(model.predict_proba(known(batch))[:, 1]))
    held_out = rng.random(len(table)) < 1 / 3
    for part, rows in (("fit", ~held_out), ("audit", held_out)):
        (folder / part).mkdir(exist_ok=True)
        pq.write_table(table.filter(pa.array(rows)), folder / part / f"{k:02d}.parquet")
print(f"{len(list((folder / 'fit').iterdir()))} files to fit, {len(list((folder / 'audit').iterdir()))} to audit")

# %%
# ## Audit and fit on disk
#
# `memory` is what rows may take: 20 MB here, so that they stay on disk at a few bytes each. Leave it out to use a
# quarter of the machine's memory.
places = lowcal.Groups(["origin", "dest_state", "hour"], min_mass=2_000)
before = lowcal.audit(
    "late15", "p", folder / "audit", subpopulations=places, alpha=0.005, memory=20_000_000, random_state=0
)
print("\n".join(str(before).splitlines()[:2]))
fit = lowcal.multicalibrate("late15", "p", folder / "fit", subpopulations=places, memory=20_000_000)
print(f"status: {fit.status.value}, violation on the fitted rows: {fit.violation:.5f}")

# %%
# ## The same on Dask
#
# `X` may be a Dask frame; its rows stay where they are. `Client("scheduler:8786")` would use a cluster; this one
# runs inside the process. The model is the same to the last bit.
import dask.dataframe as dd
from dask.distributed import Client

with Client(processes=False, n_workers=2, threads_per_worker=1, dashboard_address=None) as client:
    frame = dd.read_parquet(folder / "fit")
    on_dask = lowcal.multicalibrate("late15", "p", frame, subpopulations=places)
print("same predictor:", on_dask.predictor.to_dict() == fit.predictor.to_dict())

# %%
# ## Audit what was fitted
#
# A predictor reads the same folder and yields an array for each batch.
files = sorted((folder / "audit").iterdir())
for path in files:
    table = pq.read_table(path)
    calibrated = np.concatenate(list(fit.predictor("p", path)))
    pq.write_table(table.append_column("calibrated", pa.array(calibrated)), path)
after = lowcal.audit(
    "late15", "calibrated", files, subpopulations=places, alpha=0.005, memory=20_000_000, random_state=0
)
print("\n".join(str(after).splitlines()[:2]))

# %%
# ## Decide
#
# The model learned from the first 200,000 flights, the crowded first days of January, and overestimates delays ever
# since, most of all for Hawaii. With a million flights the audit can afford a limit of half a point.
from matplotlib import pyplot as plt

# Figure: errors per flight of the twelve airports and destinations with the largest. Before, delays are
# overestimated by 7 to 10 points; after, all intervals contain zero.
worst = before.worst(12, by="per_person")
names = [finding.subpopulation for finding in worst]
plt.axvline(0, color="0.5", linewidth=1)
for report, mark, colour, label in ((before, "s", "#d55e00", "before"), (after, "o", "#0072b2", "after")):
    found = [report.finding(name) for name in names]
    plt.hlines(names, [f.conditional_lower for f in found], [f.conditional_upper for f in found], color=colour)
    plt.plot([f.conditional for f in found], names, mark, color=colour, label=label)
plt.gca().invert_yaxis()
plt.xlabel("predictions too high  ←  error per flight, 95% interval  →  too low")
plt.legend(ncols=2, loc="lower left", bbox_to_anchor=(0, 1))
plt.show()

temporary.cleanup()
choice = "publish the recalibrated delays" if after.verdict == "satisfied" else "keep the old delays"
print(f"Decision: {choice}; in all {len(after.findings)} groups the violation is at most {after.certified_alpha:.4f}.")
