#!/usr/bin/env python3
"""Writes a file as a C array. Usage: embed.py INPUT OUTPUT."""

import sys

with open(sys.argv[1], "rb") as source:
    data = source.read()
lines = [",".join(str(byte) for byte in data[at : at + 24]) for at in range(0, len(data), 24)]
with open(sys.argv[2], "w", encoding="ascii") as target:
    target.write('#include "driver/microvm/uffd/uffd_open.h"\n\nconst unsigned char sp_uffd_library[] = {\n')
    target.write(",\n".join(lines))
    target.write("};\nconst size_t sp_uffd_library_bytes = sizeof sp_uffd_library;\n")
