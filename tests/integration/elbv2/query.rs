//! The query protocol of the simulator: a form comes in, XML goes out.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::model::{Group, Model, Refusal, Shown};

const VERSION: &str = "2015-12-01";
const NAMESPACE: &str = "http://elasticloadbalancing.amazonaws.com/doc/2015-12-01/";
/// Groups on one page of a description.
const PAGE: usize = 400;
/// Groups that one question can name.
const NAMED: usize = 20;

/// A request: its parameters by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Query(BTreeMap<String, String>);

/// A target as it is named in a request.
type Named = (IpAddr, Option<u16>, Option<String>);

impl Query {
    pub(super) fn read(body: &str) -> Self {
        let url = reqwest::Url::parse(&format!("http://elb/?{body}")).unwrap();
        Self(url.query_pairs().map(|(name, value)| (name.into_owned(), value.into_owned())).collect())
    }

    /// What is to be done.
    pub(crate) fn action(&self) -> &str {
        self.value("Action").unwrap_or_default()
    }

    /// The addresses of the targets that it names, with their zones.
    pub(crate) fn targets(&self) -> Vec<(String, Option<String>)> {
        self.members("Targets").into_iter().map(|(id, _, zone)| (id, zone)).collect()
    }

    /// The group whose targets it is about.
    pub(crate) fn group(&self) -> &str {
        self.value("TargetGroupArn").unwrap_or_default()
    }

    fn value(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    fn required(&self, name: &str) -> Result<&str, Refusal> {
        self.value(name).ok_or_else(|| Refusal::new(400, "ValidationError", format!("A {name} must be specified")))
    }

    /// The texts of a list.
    fn list(&self, name: &str) -> Vec<&str> {
        (1..).map_while(|place| self.value(&format!("{name}.member.{place}"))).collect()
    }

    /// The same, of a list that can name so many groups.
    fn named_groups(&self, name: &str) -> Result<Vec<&str>, Refusal> {
        let list = self.list(name);
        let refused = || Refusal::new(400, "ValidationError", format!("You cannot describe more than '{NAMED}' target groups at a time"));
        if list.len() > NAMED { Err(refused()) } else { Ok(list) }
    }

    fn members(&self, name: &str) -> Vec<(String, Option<String>, Option<String>)> {
        let one = |place| {
            let part = |part: &str| self.value(&format!("{name}.member.{place}.{part}")).map(str::to_owned);
            Some((part("Id")?, part("Port"), part("AvailabilityZone")))
        };
        (1..).map_while(one).collect()
    }

    fn named(&self) -> Result<Vec<Named>, Refusal> {
        let refused = |id: &str| Refusal::new(400, "ValidationError", format!("The IP address '{id}' is not a valid IPv4 or IPv6 address"));
        let port = |text: &str| text.parse().ok().filter(|port| *port > 0);
        let bad = || Refusal::new(400, "ValidationError", "The port must be between 1 and 65535");
        self.members("Targets")
            .into_iter()
            .map(|(id, text, zone)| {
                let port = text.map(|text| port(&text).ok_or_else(bad)).transpose()?;
                Ok((id.parse().map_err(|_| refused(&id))?, port, zone))
            })
            .collect()
    }
}

/// Does what is asked; the inside of the result.
pub(super) fn perform(model: &mut Model, query: &Query) -> Result<String, Refusal> {
    if query.value("Version") != Some(VERSION) {
        return Err(Refusal::new(400, "InvalidAction", "Could not find the operation for this version"));
    }
    match query.action() {
        "DescribeTargetGroups" => groups(model, query),
        "DescribeTags" => tags(model, query),
        "DescribeTargetGroupAttributes" => {
            let group = model.group(query.required("TargetGroupArn")?)?;
            let attributes =
                [("deregistration_delay.timeout_seconds", group.delay.to_string()), ("stickiness.enabled", "false".to_owned())];
            Ok(element("Attributes", &attributes.map(|(key, value)| member(&[("Key", key), ("Value", &value)])).concat()))
        }
        "DescribeTargetHealth" => health(model, query),
        "RegisterTargets" => model.register(query.required("TargetGroupArn")?, &query.named()?).map(|()| String::new()),
        "DeregisterTargets" => model.deregister(query.required("TargetGroupArn")?, &query.named()?).map(|()| String::new()),
        action => Err(Refusal::new(400, "InvalidAction", format!("Could not find operation {action} for version {VERSION}"))),
    }
}

/// Status and body of the answer.
pub(super) fn print(query: &Query, done: Result<String, Refusal>) -> (u16, String) {
    const ID: &str = "5d1d7a5e-0000-4000-8000-000000000000";
    match done {
        Ok(inside) => {
            let action = query.action();
            let result = element(&format!("{action}Result"), &inside);
            let data = element("ResponseMetadata", &element("RequestId", ID));
            (200, format!("<{action}Response xmlns=\"{NAMESPACE}\">{result}{data}</{action}Response>"))
        }
        Err(Refusal { status, code, message }) => {
            let kind = if status < 500 { "Sender" } else { "Receiver" };
            let parts = [("Type", kind), ("Code", code), ("Message", &message)].map(|(name, text)| element(name, &escape(text)));
            let error = element("Error", &parts.concat());
            (status, format!("<ErrorResponse xmlns=\"{NAMESPACE}\">{error}{}</ErrorResponse>", element("RequestId", ID)))
        }
    }
}

fn groups(model: &mut Model, query: &Query) -> Result<String, Refusal> {
    let wanted = query.named_groups("TargetGroupArns")?;
    for arn in &wanted {
        model.group(arn)?;
    }
    let matching = model.groups.iter().filter(|(arn, _)| wanted.is_empty() || wanted.contains(&arn.as_str()));
    let mut rest = matching.filter(|(arn, _)| query.value("Marker").is_none_or(|marker| arn.as_str() > marker));
    let page: Vec<_> = rest.by_ref().take(PAGE).collect();
    let members: String = page.iter().map(|(arn, group)| group_member(arn, group)).collect();
    let marker = rest.next().and_then(|_| page.last()).map(|(arn, _)| element("NextMarker", arn)).unwrap_or_default();
    Ok(element("TargetGroups", &members) + &marker)
}

fn group_member(arn: &str, group: &Group) -> String {
    let name = arn.split('/').nth(1).unwrap_or_default();
    let by_http = matches!(group.protocol, "HTTP" | "HTTPS");
    let interval = group.check_interval.to_string();
    let check = [("HealthCheckProtocol", if by_http { "HTTP" } else { "TCP" }), ("HealthCheckPath", group.check_path)];
    let usual = [
        ("HealthCheckEnabled", "true"),
        ("HealthCheckPort", "traffic-port"),
        ("HealthCheckIntervalSeconds", &interval),
        ("HealthCheckTimeoutSeconds", "5"),
        ("HealthyThresholdCount", "5"),
        ("UnhealthyThresholdCount", "2"),
    ];
    let described = [
        ("TargetGroupArn", arn),
        ("TargetGroupName", name),
        ("Protocol", group.protocol),
        ("Port", "80"),
        ("VpcId", "vpc-0123456789abcdef0"),
        ("TargetType", group.target_type),
        ("IpAddressType", group.family),
    ];
    // There is no path to a connection.
    member(&[&described[..], &check[..if by_http { 2 } else { 1 }], &usual].concat())
}

fn tags(model: &mut Model, query: &Query) -> Result<String, Refusal> {
    let mut members = String::new();
    for arn in query.named_groups("ResourceArns")? {
        let group = model.group(arn)?;
        let tags: String = group.tags.iter().map(|(key, value)| member(&[("Key", key), ("Value", value)])).collect();
        members += &element("member", &(element("ResourceArn", arn) + &element("Tags", &tags)));
    }
    Ok(element("TagDescriptions", &members))
}

fn health(model: &mut Model, query: &Query) -> Result<String, Refusal> {
    let shown = model.health(query.required("TargetGroupArn")?)?;
    let named = query.named()?;
    if named.is_empty() {
        return Ok(element("TargetHealthDescriptions", &shown.iter().map(health_member).collect::<String>()));
    }
    let mut members = String::new();
    for (ip, port, zone) in named {
        let wanted = |one: &&Shown| one.address.ip() == ip && port.is_none_or(|port| port == one.address.port());
        let found: Vec<_> = shown.iter().filter(wanted).collect();
        if found.is_empty() {
            let address = (ip, port.unwrap_or(80)).into();
            members += &health_member(&Shown { address, zone, state: "unused", reason: Some("Target.NotRegistered") });
        }
        members.extend(found.into_iter().map(health_member));
    }
    Ok(element("TargetHealthDescriptions", &members))
}

fn health_member(shown: &Shown) -> String {
    let port = shown.address.port().to_string();
    let zone = shown.zone.as_ref().map(|zone| element("AvailabilityZone", zone)).unwrap_or_default();
    let target = element("Id", &shown.address.ip().to_string()) + &element("Port", &port) + &zone;
    let reason = shown.reason.map(|reason| element("Reason", reason)).unwrap_or_default();
    let health = element("State", shown.state) + &reason;
    let check = element("HealthCheckPort", &port);
    element("member", &(check + &element("Target", &target) + &element("TargetHealth", &health)))
}

fn member(parts: &[(&str, &str)]) -> String {
    element("member", &parts.iter().map(|(name, text)| element(name, &escape(text))).collect::<String>())
}

fn element(name: &str, inside: &str) -> String {
    format!("<{name}>{inside}</{name}>")
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
