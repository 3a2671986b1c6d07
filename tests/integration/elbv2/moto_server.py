"""Runs moto's ELBv2 with one group of an ALB, prints where and which, and ends with its input."""

import json
import sys

import boto3
from moto.server import ThreadedMotoServer

server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
host, port = server.get_host_and_port()
url = f"http://{host}:{port}"
account = {"region_name": "eu-west-1", "endpoint_url": url, "aws_access_key_id": "AKIDGOOD", "aws_secret_access_key": "secret"}
ec2, elb = boto3.client("ec2", **account), boto3.client("elbv2", **account)
vpc = ec2.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
subnets = [
    ec2.create_subnet(VpcId=vpc, CidrBlock=f"10.0.{n}.0/24", AvailabilityZone=f"eu-west-1{zone}")["Subnet"]["SubnetId"]
    for n, zone in enumerate("ab")
]
group = elb.create_target_group(
    Name="web", Protocol="HTTP", Port=80, VpcId=vpc, TargetType="ip", Tags=[{"Key": "team", "Value": "shop"}]
)["TargetGroups"][0]["TargetGroupArn"]
attributes = [{"Key": "deregistration_delay.timeout_seconds", "Value": "45"}]
elb.modify_target_group_attributes(TargetGroupArn=group, Attributes=attributes)
balancer = elb.create_load_balancer(Name="web", Subnets=subnets)["LoadBalancers"][0]["LoadBalancerArn"]
forward = [{"Type": "forward", "TargetGroupArn": group}]
elb.create_listener(LoadBalancerArn=balancer, Protocol="HTTP", Port=80, DefaultActions=forward)
print(json.dumps({"url": url, "arn": group}), flush=True)
sys.stdin.read()
server.stop()
