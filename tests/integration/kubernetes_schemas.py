"""Holds objects against the schemas of several versions of Kubernetes, strictly, and prints each complaint.

usage: kubernetes_schemas.py FILE VERSION...     FILE holds YAML documents; a version is like 1.30
"""

import functools
import sys

import yaml
from kubernetes_validate import utils

# It reads megabytes of definitions anew for each object otherwise: minutes instead of seconds.
utils.schema_contents = functools.cache(utils.schema_contents)


def complaints(objects, version):
    for found in objects:
        name = f"{version}: {found['kind']}/{found['metadata']['name']}"
        try:
            utils.validate(found, f"{version}.0", strict=True)
        except utils.ValidationError as error:
            yield f"{name}: {'.'.join(map(str, error.path))}: {error.message}"
        except utils.SchemaNotFoundError as error:
            yield f"{name}: {error.message}"


with open(sys.argv[1], encoding="utf-8") as file:
    read = [document for document in yaml.safe_load_all(file) if document]
found = [complaint for version in sys.argv[2:] for complaint in complaints(read, version)]
print("\n".join(found))
sys.exit(1 if found else 0)
