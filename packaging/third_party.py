"""Prints the crates that are linked into the library, with the texts of their licenses.

Takes the flags that the library is built with: its features.
"""

import json
import re
import subprocess
import sys
from pathlib import Path


def cargo(*command):
    return subprocess.run(["cargo", *command], text=True, capture_output=True, check=True).stdout


tree = cargo("tree", "--locked", "-p", "ratelimit", "-e", "normal,no-proc-macro", "--prefix", "none", *sys.argv[1:])
linked = set(re.findall(r"^(\S+) v(\S+)", tree, re.MULTILINE))
packages = json.loads(cargo("metadata", "--locked", "--format-version", "1"))["packages"]
crates = sorted(
    (package for package in packages if (package["name"], package["version"]) in linked and package["source"]),
    key=lambda package: (package["name"], package["version"]),
)
texts = {}  # a text -> the crates that have it
print("The library holds code of these crates:\n")
for crate in crates:
    name = f"{crate['name']} {crate['version']}"
    print(f"{name}: {crate['license']}")
    for file in sorted(Path(crate["manifest_path"]).parent.iterdir()):
        if re.match(r"(?i)(un)?licen[cs]e|copying|notice|copyright", file.name) and file.is_file():
            texts.setdefault(file.read_text(errors="replace").strip(), []).append(name)
print("\nThe texts of their licenses, each with those that bring it:")
for text, names in texts.items():
    print(f"\n{'-' * 80}\n{', '.join(dict.fromkeys(names))}\n\n{text}")
