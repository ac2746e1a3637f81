#!/usr/bin/env python3
"""Checks the licence of every dependency against deny.toml's allow list (for where cargo-deny is not installed)."""
import json
import re
import subprocess
import sys
import tomllib

allow = set(tomllib.load(open("deny.toml", "rb"))["licenses"]["allow"])
metadata = json.loads(subprocess.check_output(["cargo", "metadata", "--format-version", "1", "--locked"]))


def allowed(expression):
    """An SPDX expression of OR, AND, WITH and brackets, with `/` as the old spelling of OR."""
    tokens = re.findall(r"[()]|[^\s()]+", expression.replace("/", " OR "))
    position = 0

    def one():
        nonlocal position
        if tokens[position] == "(":
            position += 1
            value = any_of()
            position += 1
            return value
        name = tokens[position]
        position += 1
        if position < len(tokens) and tokens[position] == "WITH":
            name = f"{name} WITH {tokens[position + 1]}"
            position += 2
        return name in allow

    def all_of():
        nonlocal position
        value = one()
        while position < len(tokens) and tokens[position] == "AND":
            position += 1
            value = one() and value
        return value

    def any_of():
        nonlocal position
        value = all_of()
        while position < len(tokens) and tokens[position] == "OR":
            position += 1
            value = all_of() or value
        return value

    return any_of()


bad = [p for p in metadata["packages"] if not p["license"] or not allowed(p["license"])]
for package in bad:
    print(f"licence not allowed: {package['name']} {package['version']}: {package['license']}", file=sys.stderr)
foreign = [p for p in metadata["packages"] if p["source"] and not p["source"].startswith("registry+")]
for package in foreign:
    print(f"not from a registry: {package['name']} {package['version']}: {package['source']}", file=sys.stderr)
print(f"licences: {len(metadata['packages'])} packages looked at, {len(bad)} not allowed, {len(foreign)} from elsewhere")
sys.exit(1 if bad or foreign else 0)
