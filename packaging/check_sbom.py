"""Checks an SBOM against Cargo.lock: that it names each crate which is linked into the library, with its license,
and with the version and the checksum that are locked.
"""

import json
import subprocess
import sys
import tomllib
from pathlib import Path

bom = json.loads(Path(sys.argv[1]).read_text())
assert (bom["bomFormat"], bom["specVersion"]) == ("CycloneDX", "1.5"), (bom["bomFormat"], bom["specVersion"])
assert bom["metadata"]["component"]["name"] == "ratelimit"
assert "/ratelimit#" in bom["metadata"]["component"]["bom-ref"], "a folder of the machine is in it"
locked = {(crate["name"], crate["version"]): crate.get("checksum") for crate in tomllib.loads(Path("Cargo.lock").read_text())["package"]}
found = {(crate["name"], crate["version"]): crate for crate in bom["components"]}
for crate, component in found.items():
    assert crate in locked, f"{crate} is not locked"
    assert component.get("licenses"), f"{crate} has no license"
    hashes = {hash["content"] for hash in component.get("hashes", []) if hash["alg"] == "SHA-256"}
    assert hashes == {locked[crate]} - {None}, f"{crate} has another checksum: {hashes}"
command = ["cargo", "tree", "--locked", "-p", "ratelimit", "-e", "normal,no-proc-macro", "--prefix", "none", "-f", "{p}"]
lines = subprocess.run(command, text=True, capture_output=True, check=True).stdout.splitlines()
linked = {(name, version.removeprefix("v")) for name, version in (line.split()[:2] for line in lines if line)}
missing = linked - set(found) - {("ratelimit", bom["metadata"]["component"]["version"])}
assert len(linked) > 30 and not missing, f"it lacks {missing}"
print(f"{len(found)} crates, {len(linked)} of them linked")
