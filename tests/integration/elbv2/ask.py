"""Asks a server of the ELBv2 API with botocore, and holds every answer against botocore's model of it.

usage: ask.py URL FULL OTHER...   FULL: a group with room for two targets that refuses 10.0.0.9; OTHER: groups whose targets are read
Prints what the answers came to, as JSON.
"""

import json
import sys
from xml.etree import ElementTree

import boto3
from botocore.config import Config

url, full, *others = sys.argv[1:]
client = boto3.client(
    "elbv2",
    region_name="eu-west-1",
    endpoint_url=url,
    aws_access_key_id="AKIDGOOD",
    aws_secret_access_key="secret",
    config=Config(retries={"max_attempts": 0}, proxies={}),
)
strangers = []


def name(element):
    return element.tag.rsplit("}", 1)[-1]


def compare(element, shape, path):
    """Notes every element that the model does not know, and every word that is not among those of an enumeration."""
    if shape.type_name == "structure":
        for child in element:
            known = shape.members.get(name(child))
            if known is None:
                strangers.append(f"{path}/{name(child)}")
            else:
                compare(child, known, f"{path}/{name(child)}")
    elif shape.type_name == "list":
        for child in element:
            if name(child) != "member":
                strangers.append(f"{path}/{name(child)}")
            compare(child, shape.member, f"{path}/member")
    elif getattr(shape, "enum", None) and element.text not in shape.enum:
        strangers.append(f"{path}={element.text}")


def hold(http_response, model, **_):
    if http_response.status_code != 200:
        return
    root = ElementTree.fromstring(http_response.content)
    wrapper = model.output_shape.serialization["resultWrapper"]
    result = next((child for child in root if name(child) == wrapper), None)
    if result is None:
        strangers.append(f"{model.name} has no {wrapper}")
    else:
        compare(result, model.output_shape, model.name)


client.meta.events.register("after-call.elastic-load-balancing-v2", hold)


def refusal(call, **arguments):
    try:
        call(**arguments)
    except client.exceptions.ClientError as error:
        return type(error).__name__
    return "none"


def targets(*addresses):
    return [{"Id": address, "Port": 8080} for address in addresses]


def states(arn, **more):
    answer = client.describe_target_health(TargetGroupArn=arn, **more)
    return [[one["Target"]["Id"], one["TargetHealth"]["State"], one["TargetHealth"].get("Reason")] for one in answer["TargetHealthDescriptions"]]


group = client.describe_target_groups(TargetGroupArns=[full])["TargetGroups"][0]
client.register_targets(TargetGroupArn=full, Targets=targets("10.0.0.1", "10.0.0.2"))
pages = client.get_paginator("describe_target_groups").paginate()
missing = full.replace("/web/", "/missing/")
came = {
    "group": [group["TargetType"], group["IpAddressType"], group["Protocol"]],
    "tags": client.describe_tags(ResourceArns=[full])["TagDescriptions"][0]["Tags"],
    "attributes": {one["Key"]: one["Value"] for one in client.describe_target_group_attributes(TargetGroupArn=full)["Attributes"]},
    "groups": len({group["TargetGroupArn"] for page in pages for group in page["TargetGroups"]}),
    "unknown": states(full, Targets=targets("10.0.0.7")),
    "full": refusal(client.register_targets, TargetGroupArn=full, Targets=targets("10.0.0.3")),
    "bad": refusal(client.register_targets, TargetGroupArn=full, Targets=targets("10.0.0.9")),
    "missing": refusal(client.describe_target_groups, TargetGroupArns=[missing]),
}
client.deregister_targets(TargetGroupArn=full, Targets=targets("10.0.0.2"))
came["states"] = [state for arn in [full, *others] for state in states(arn)]
came["strangers"] = strangers
print(json.dumps(came))
