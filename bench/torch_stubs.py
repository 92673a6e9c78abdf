"""Stand-ins for the CUDA libraries that a CPU run of PyTorch's wheel loads but never calls.   torch_stubs.py VENV

The wheel's libraries name others (NEEDED) and symbols of theirs. For each library that is missing, an empty one of that name is
linked into torch/lib. A symbol that carries a version belongs to the library that the version section names; the rest are put
into one stand-in, since the dynamic linker looks for a plain name everywhere. Every symbol is a function that returns 999.
Needs gcc and readelf. Libraries of the system (libc and its kin) are left alone.
"""
import collections
import glob
import os
import re
import subprocess
import sys
import tempfile

SYSTEM = re.compile(r"^(ld-linux|lib(c|m|dl|rt|pthread|util|stdc\+\+|gcc_s|gomp)[-.])")


def readelf(*args):
    return subprocess.run(["readelf", "-W", *args], capture_output=True, text=True, check=True).stdout


def needed_by(path):
    return re.findall(r"\(NEEDED\).*\[(.+)\]", readelf("-d", path))


def symbols_of(path):
    """(defined names, undefined names with their version or None), weak ones aside."""
    defined, undefined = set(), set()
    for line in readelf("--dyn-syms", path).splitlines():
        field = line.split()
        if len(field) < 8 or not field[0].rstrip(":").isdigit():
            continue
        name, _, version = field[7].partition("@")
        if field[6] != "UND":
            defined.add(name)
        elif field[4] == "GLOBAL":
            undefined.add((name, version.lstrip("@") or None))
    return defined, undefined


def library_of_version(path):
    """Version name -> library, from the section of needed versions."""
    owner, result = None, {}
    for line in readelf("-V", path).splitlines():
        found = re.search(r"File: (\S+)", line)
        owner = found.group(1) if found else owner
        found = re.search(r"Name: (\S+)\s+Flags", line)
        if found and owner:
            result[found.group(1)] = owner
    return result


def make_stub(folder, soname, versions):
    """versions: version name or None -> names."""
    with tempfile.TemporaryDirectory() as work:
        source, script = os.path.join(work, "stub.c"), os.path.join(work, "stub.map")
        names = sorted({n for group in versions.values() for n in group})
        with open(source, "w") as f:
            f.write("\n".join(f"int {n}(void) {{ return 999; }}" for n in names) or "typedef int nothing;\n")
        with open(script, "w") as f:
            for version, group in versions.items():
                if version:
                    f.write(f"{version} {{ global: {' '.join(n + ';' for n in sorted(group))} }};\n")
        options = [f"-Wl,--version-script={script}"] if os.path.getsize(script) else []
        subprocess.run(["gcc", "-w", "-fno-builtin", "-shared", "-fPIC", f"-Wl,-soname,{soname}", *options, "-o",
                        os.path.join(folder, soname), source], check=True)


def main():
    site = glob.glob(os.path.join(sys.argv[1], "lib/python3*/site-packages"))[0]
    folder = os.path.join(site, "torch/lib")
    real = glob.glob(os.path.join(site, "nvidia/*/lib/*.so*"))
    libraries = [p for p in glob.glob(os.path.join(folder, "*.so*")) if os.path.isfile(p)]
    have = {os.path.basename(p) for p in libraries + real}
    missing, defined, undefined, owner = set(), set(), set(), {}
    for path in libraries:
        missing |= {n for n in needed_by(path) if n not in have and not SYSTEM.match(n)}
        d, u = symbols_of(path)
        defined |= d
        undefined |= u
        owner |= library_of_version(path)
    for path in real:
        defined |= symbols_of(path)[0]
    stubs = {soname: collections.defaultdict(set) for soname in missing}
    rest = sorted(missing)[0] if missing else None
    for name, version in undefined:
        if version and owner.get(version) in stubs:
            stubs[owner[version]][version].add(name)
        elif rest and not version and name not in defined and name.startswith(("cu", "nccl", "nv", "pnccl", "_cu")):
            stubs[rest][None].add(name)
    for soname, versions in stubs.items():
        make_stub(folder, soname, versions)
    print(f"torch: stand-ins for {len(stubs)} CUDA libraries")


if __name__ == "__main__":
    main()
