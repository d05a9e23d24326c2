"""Prints the crates that are linked into the library, Rust's standard library among them, with the texts of
their licenses.

Takes the flags that the library is built with: its features.
"""

import html
import json
import re
import subprocess
import sys
from pathlib import Path


def run(*command):
    return subprocess.run(command, text=True, capture_output=True, check=True).stdout


tree = run("cargo", "tree", "--locked", "-p", "ratelimit", "-e", "normal,no-proc-macro", "--prefix", "none", *sys.argv[1:])
linked = set(re.findall(r"^(\S+) v(\S+)", tree, re.MULTILINE))
packages = json.loads(run("cargo", "metadata", "--locked", "--format-version", "1"))["packages"]
crates = sorted(
    (package for package in packages if (package["name"], package["version"]) in linked and package["source"]),
    key=lambda package: (package["name"], package["version"]),
)
texts = {}  # a text -> the crates that have it


# In the standard library, but not in the compiler's notices. Each may be had under Apache-2.0
# or the Unlicense, which ask for no line of its own; compiler_builtins is part of Rust, with code of LLVM.
WITHOUT_NOTICE = {
    "addr2line": "Apache-2.0 OR MIT",
    "adler2": "0BSD OR MIT OR Apache-2.0",
    "compiler_builtins": "MIT AND Apache-2.0 WITH LLVM-exception AND (MIT OR Apache-2.0)",
    "memchr": "Unlicense OR MIT",
    "miniz_oxide": "MIT OR Zlib OR Apache-2.0",
    "object": "Apache-2.0 OR MIT",
}
OWN = {"alloc", "core", "panic_abort", "panic_unwind", "proc_macro", "profiler_builtins", "std", "std_detect", "sysroot", "test", "unwind"}


def standard_library():
    """What it is made of on this platform, with the name and the license of each; adds the texts."""
    sysroot, target = (run("rustc", "--print", what).strip() for what in ("sysroot", "target-libdir"))
    notices = Path(sysroot, "share/doc/rust")
    section, *others = re.split("<h3>📦 ", (notices / "COPYRIGHT-library.html").read_text())
    section = section[section.index('<h2 id="in-tree-files">') :]
    page = {re.match(r"(.*?)-\d", other)[1].replace("-", "_"): other for other in others}

    own = "Rust's standard library"
    licenses = sorted(set(re.findall(r"<b>License:</b> ([^<]+)", section)))
    for license in sorted(set(re.findall(r"[\w.-]+", " ".join(licenses))) - {"AND", "OR"} | {"LLVM-exception"}):
        texts.setdefault((notices / "licenses" / f"{license}.txt").read_text().strip(), []).append(own)
    lines = re.findall(r"<b>(?:File/Directory|License|Copyright):</b>.*", section)
    texts["\n".join(html.unescape(re.sub(r"<[^>]*>", "", line)).strip() for line in lines)] = [own]
    yield own, ", ".join(licenses)
    crates = {re.match(r"lib(.*)-", file.name)[1] for file in Path(target).glob("*.rlib")}
    for crate in sorted(name for name in crates - OWN if not name.startswith("rustc_std_workspace")):
        name, license = f"{crate} of Rust's standard library", WITHOUT_NOTICE.get(crate)
        if license is None:  # then it has to be on the page
            license = re.search(r"<b>License:</b> ([^<]+)", page[crate])[1]
            for text in re.findall(r"<pre>(.*?)</pre>", page[crate], re.DOTALL):
                texts.setdefault(html.unescape(text).strip(), []).append(name)
        yield name, license


print("The library holds code of these crates:\n")
for crate in crates:
    name = f"{crate['name']} {crate['version']}"
    print(f"{name}: {crate['license']}")
    for file in sorted(Path(crate["manifest_path"]).parent.iterdir()):
        if re.match(r"(?i)(un)?licen[cs]e|copying|notice|copyright", file.name) and file.is_file():
            texts.setdefault(file.read_text(errors="replace").strip(), []).append(name)
for name, license in standard_library():
    print(f"{name}: {license}")
print("\nThe texts of their licenses, each with those that bring it:")
for text, names in texts.items():
    print(f"\n{'-' * 80}\n{', '.join(dict.fromkeys(names))}\n\n{text}")
