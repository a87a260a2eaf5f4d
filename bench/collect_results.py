#!/usr/bin/env python3
"""Joins the JSON files that benches wrote into one, by name, and prints it as a short table. Files that
are not there are left out; names that an older file has and no newer one keep their old figures.

    bench/collect_results.py bench/results/h200.json OUT/kernels.json OUT/models.json
"""
import json
import os
import sys

KEYS = ("name", "value", "unit", "anchor", "anchor_value", "ratio", "command", "hardware", "date",
        "commit")


def read(path):
    if not os.path.exists(path):
        return []
    with open(path, encoding="utf-8") as file:
        rows = json.load(file)
    for row in rows:
        missing = [key for key in KEYS if key not in row]
        if missing:
            sys.exit(f"{path}: {row.get('name')}: no {', '.join(missing)}")
        # Of a bench that was run by hand.
        row["commit"] = row["commit"] or os.environ.get("BATON_COMMIT", "")
        if not row["commit"]:
            sys.exit(f"{path}: {row['name']}: of which commit? (BATON_COMMIT)")
        if row["anchor"] == "none":
            row["anchor_value"] = row["ratio"] = 0
    return rows


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    out = sys.argv[1]
    rows = {row["name"]: row for row in read(out)}
    for path in sys.argv[2:]:
        rows.update({row["name"]: row for row in read(path)})
    os.makedirs(os.path.dirname(out) or ".", exist_ok=True)
    with open(out, "w", encoding="utf-8") as file:
        json.dump([rows[name] for name in sorted(rows)], file, indent=1)
        file.write("\n")
    for name in sorted(rows):
        row = rows[name]
        print(f"{name:44} {row['value']:12.2f} {row['unit']:8} {row['ratio']:7.3f} of {row['anchor']}")


if __name__ == "__main__":
    main()
