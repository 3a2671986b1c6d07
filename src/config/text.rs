//! The little languages inside of a configuration: durations, percentages, names, addresses.
//!
//! Each rule stands here once, with the sentence that a person reads when it is broken.
//!
//! Invariant: total: every text is either a value or a reason, without a panic and without an overflow.
//! Absent on purpose: where a value stands and what it means.

use std::net::IpAddr;
use std::time::Duration;

use super::off_limits::off_limits;

/// The most characters of a name of ours (metric labels, conditions and the record carry it).
pub(super) const NAME: usize = 63;
/// The most characters of a service's name, an address or a URL.
pub(super) const ADDRESS: usize = 1024;
/// The most characters of a credential's file name, as a Secret's key may have.
pub(super) const CREDENTIAL: usize = 253;

/// Why a text breaks a rule, and what to write.
pub(super) type Broken = (String, String);

const UNITS: [(&str, u64); 7] =
    [("ns", 1), ("us", 1_000), ("µs", 1_000), ("μs", 1_000), ("ms", 1_000_000), ("s", 1_000_000_000), ("m", 60_000_000_000)];
const HOUR: u64 = 3_600_000_000_000;

/// A duration as Go and Kubernetes write it: numbers with units, as in `1m30s`, `1.5s`, `500ms`; a bare `0` is nothing.
pub fn duration(text: &str) -> Result<Duration, &'static str> {
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    if text.starts_with('-') {
        return Err("it is negative");
    }
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    if rest.is_empty() {
        return Err("it is empty");
    }
    let mut sum: u64 = 0;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (number, tail) = rest.split_at(digits);
        let letters = tail.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(letters);
        let nanos = match unit {
            "h" => HOUR,
            "" => return Err("a number has no unit"),
            _ => UNITS.iter().find(|(name, _)| *name == unit).ok_or("a unit is not known")?.1,
        };
        sum = amount(number, nanos).and_then(|part| sum.checked_add(part)).ok_or("a number is not readable")?;
        rest = tail;
    }
    Ok(Duration::from_nanos(sum))
}

/// A duration in its shortest usual form.
pub fn show_duration(duration: Duration) -> String {
    let (seconds, millis) = (duration.as_secs(), duration.subsec_millis());
    if millis > 0 {
        return format!("{}s", f64::from(millis) / 1000.0 + seconds as f64);
    }
    match seconds {
        0 => "0s".to_owned(),
        s if s % 3600 == 0 => format!("{}h", s / 3600),
        s if s % 60 == 0 && s >= 600 => format!("{}m", s / 60),
        s => format!("{s}s"),
    }
}

/// `50%`.
pub(super) fn percentage(text: &str) -> Option<u8> {
    let digits = text.strip_suffix('%')?;
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    digits.parse().ok().filter(|percent| *percent <= 100)
}

/// A name of ours: a registry, a binding, a cluster.
pub(super) fn name(text: &str) -> Result<(), Broken> {
    rule(
        text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
            && text.starts_with(|c: char| c.is_ascii_alphanumeric())
            && text.ends_with(|c: char| c.is_ascii_alphanumeric()),
        "is no name",
        "letters, digits, '-', '_' and '.', beginning and ending with a letter or digit",
    )
}

/// A namespace (RFC 1123 label).
pub(super) fn namespace(text: &str) -> Result<(), Broken> {
    rule(is_dns_label(text), "is no name of a namespace", "lower-case letters, digits and '-', at most 63")
}

/// A registry's name for a service: it stands in a line of claims.
pub(super) fn service(text: &str) -> Result<(), Broken> {
    rule(!text.chars().any(char::is_whitespace), "holds white space", "write the name as the registry has it")
}

/// A file under the credentials directory; never a path.
pub(super) fn credential(text: &str) -> Result<(), Broken> {
    rule(
        text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.')) && !text.starts_with('.'),
        "is no name of a credential",
        "the name of a file in the credentials directory (a key of its Secret), never a path and never the secret itself",
    )
}

/// A container port's name (RFC 6335, as Kubernetes checks it).
pub(super) fn port_name(text: &str) -> Result<(), Broken> {
    if text.bytes().all(|b| b.is_ascii_digit()) {
        return Err(("is a number in quotes".to_owned(), format!("write {text} without quotes")));
    }
    rule(
        text.len() <= 15
            && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
            && text.bytes().any(|b| b.is_ascii_lowercase())
            && !text.contains("--")
            && !text.starts_with('-')
            && !text.ends_with('-'),
        "is no name of a container port",
        "a port number, or a name of at most 15 lower-case letters, digits and '-'",
    )
}

/// A label's key: `name` or `prefix/name`.
pub(super) fn label_key(text: &str) -> Result<(), Broken> {
    let (prefix, name) = text.split_once('/').map_or((None, text), |(prefix, name)| (Some(prefix), name));
    let prefixed = prefix.is_none_or(|prefix| prefix.len() <= 253 && prefix.split('.').all(is_dns_label));
    rule(prefixed && !name.is_empty() && is_label_part(name), "is no key of a label", "a name, or prefix/name, as Kubernetes takes it")
}

/// A label's value, which may be empty.
pub(super) fn label_value(text: &str) -> Result<(), Broken> {
    rule(is_label_part(text), "is no value of a label", "at most 63 letters, digits, '-', '_' and '.'")
}

/// An `http` or `https` URL without credentials, query or fragment.
pub(super) fn url(text: &str) -> Result<(), Broken> {
    let broken = |reason: &str, remedy: &str| Err((reason.to_owned(), remedy.to_owned()));
    let Ok(uri) = text.parse::<http::Uri>() else {
        return broken("is no URL", "as in https://registry.example.com:8443");
    };
    let Some(authority) = uri.authority().filter(|_| matches!(uri.scheme_str(), Some("http" | "https"))) else {
        return broken("is no http or https URL", "as in https://registry.example.com:8443");
    };
    if authority.as_str().contains('@') {
        return broken("holds a user or password", "name a credential file with token instead");
    }
    if uri.query().is_some() || text.contains('#') {
        return broken("has a query or fragment", "write scheme, host, port and path alone");
    }
    if authority.port().is_none() && authority.as_str().trim_end_matches(']').ends_with(':') {
        return broken("has an empty port", "write the port, or leave the colon out");
    }
    host(authority.host())
}

/// A host that may be called.
pub(super) fn host(text: &str) -> Result<(), Broken> {
    let bare = text.trim_start_matches('[').trim_end_matches(']');
    if let Some(what) = bare.parse().ok().and_then(off_limits) {
        return Err((format!("is {what}"), "name an address of the registry itself".to_owned()));
    }
    rule(
        bare.parse::<IpAddr>().is_ok()
            || (!text.is_empty()
                && text.len() <= 253
                && text.trim_end_matches('.').split('.').all(|part| {
                    !part.is_empty() && part.len() <= 63 && part.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'))
                })),
        "has no readable host",
        "a DNS name or an address",
    )
}

/// `host:port`, `[v6]:port` or `unix:/path`.
pub(super) fn socket(text: &str) -> Result<(), Broken> {
    if let Some(path) = text.strip_prefix("unix:") {
        return rule(path.starts_with('/') && path.len() > 1, "is no path of a socket", "unix:/absolute/path");
    }
    let Some((name, port)) = text.rsplit_once(':') else {
        return Err(("has no port".to_owned(), "host:port, [v6]:port or unix:/path".to_owned()));
    };
    rule(
        port.bytes().all(|b| b.is_ascii_digit()) && port.parse::<u16>().is_ok_and(|port| port > 0),
        "has no port from 1 to 65535",
        "host:port, [v6]:port or unix:/path",
    )?;
    rule(!name.contains(':') || (name.starts_with('[') && name.ends_with(']')), "is an IPv6 address without brackets", "[v6]:port")?;
    host(name)
}

/// Region and account of a target group, from its ARN.
pub(super) fn target_group(text: &str) -> Result<(&str, &str), Broken> {
    let broken = || {
        (
            "is no ARN of a target group".to_owned(),
            "arn:aws:elasticloadbalancing:REGION:ACCOUNT:targetgroup/NAME/ID, as the console shows it".to_owned(),
        )
    };
    let parts: Vec<&str> = text.splitn(6, ':').collect();
    let [arn, partition, service, region, account, resource] = parts[..] else { return Err(broken()) };
    let group: Vec<&str> = resource.split('/').collect();
    let fits = arn == "arn"
        && partition.starts_with("aws")
        && service == "elasticloadbalancing"
        && self::region(region).is_ok()
        && account.len() == 12
        && account.bytes().all(|b| b.is_ascii_digit())
        && matches!(group[..], ["targetgroup", name, id] if !name.is_empty() && !id.is_empty());
    if fits { Ok((region, account)) } else { Err(broken()) }
}

/// `eu-west-1`.
pub(super) fn region(text: &str) -> Result<(), Broken> {
    rule(
        text.contains('-') && text.len() <= 32 && text.split('-').all(|part| !part.is_empty()) && is_dns_label(text),
        "is no region",
        "as in eu-west-1",
    )
}

/// `arn:aws:iam::123456789012:role/NAME`.
pub(super) fn role(text: &str) -> Result<(), Broken> {
    let parts: Vec<&str> = text.splitn(6, ':').collect();
    let fits = matches!(parts[..], ["arn", partition, "iam", "", account, role]
        if partition.starts_with("aws") && account.len() == 12 && role.strip_prefix("role/").is_some_and(|name| !name.is_empty()));
    rule(fits, "is no ARN of a role", "arn:aws:iam::ACCOUNT:role/NAME")
}

/// The account of a role, from its ARN.
pub(super) fn role_account(arn: &str) -> Option<&str> {
    arn.split(':').nth(4)
}

/// `unused/Target.NotInUse`: a state of ELB with its reason code.
pub(super) fn accepted_state(text: &str) -> Result<(), Broken> {
    const STATES: [&str; 4] = ["initial", "unavailable", "unhealthy", "unused"];
    const ABSENCE: &str = "Target.NotRegistered";
    let Some((state, code)) = text.split_once('/') else {
        return Err(("has no reason code".to_owned(), "state/ReasonCode, as in unused/Target.NotInUse".to_owned()));
    };
    rule(STATES.contains(&state), "names no state that can be accepted", "initial, unavailable, unhealthy or unused, then /ReasonCode")?;
    rule(code != ABSENCE, "is how ELB says that a target is absent", "leave it out")?;
    rule(
        code.split_once('.').is_some_and(|(subject, word)| {
            matches!(subject, "Target" | "Elb") && !word.is_empty() && word.bytes().all(|b| b.is_ascii_alphanumeric())
        }),
        "has no readable reason code",
        "state/ReasonCode, as in unused/Target.NotInUse",
    )
}

fn amount(number: &str, unit: u64) -> Option<u64> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
        return None;
    }
    let whole: u64 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    let mut sum = whole.checked_mul(unit)?;
    let mut place = unit;
    for digit in fraction.bytes() {
        place /= 10;
        sum = sum.checked_add(place * u64::from(digit - b'0'))?;
    }
    Some(sum)
}

fn is_dns_label(text: &str) -> bool {
    (1..=63).contains(&text.len())
        && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
        && !text.starts_with('-')
        && !text.ends_with('-')
}

fn is_label_part(text: &str) -> bool {
    let end = |c: Option<char>| c.is_none_or(|c| c.is_ascii_alphanumeric());
    text.len() <= 63
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
        && end(text.chars().next())
        && end(text.chars().next_back())
}

fn rule(holds: bool, reason: &str, remedy: &str) -> Result<(), Broken> {
    if holds { Ok(()) } else { Err((reason.to_owned(), remedy.to_owned())) }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("0", Some(0))]
    #[case("0s", Some(0))]
    #[case("15s", Some(15_000))]
    #[case("8m", Some(480_000))]
    #[case("1h", Some(3_600_000))]
    #[case("1m30s", Some(90_000))]
    #[case("1.5s", Some(1_500))]
    #[case(".5m", Some(30_000))]
    #[case("500ms", Some(500))]
    #[case("2000us", Some(2))]
    #[case("+3s", Some(3_000))]
    #[case("15", None)]
    #[case("15S", None)]
    #[case("-1s", None)]
    #[case("", None)]
    #[case("s", None)]
    #[case(".s", None)]
    #[case("1.2.3s", None)]
    #[case("5 s", None)]
    #[case("1d", None)]
    #[case("99999999999999999999h", None)]
    #[case("9999999999h", None)]
    fn durations(#[case] text: &str, #[case] millis: Option<u64>) {
        assert_eq!(duration(text).ok(), millis.map(Duration::from_millis));
    }

    #[rstest]
    #[case(0, "0s")]
    #[case(1_500, "1.5s")]
    #[case(90_000, "90s")]
    #[case(600_000, "10m")]
    #[case(86_400_000, "24h")]
    fn durations_shown(#[case] millis: u64, #[case] text: &str) {
        assert_eq!(show_duration(Duration::from_millis(millis)), text);
        assert_eq!(duration(text), Ok(Duration::from_millis(millis)));
    }

    #[rstest]
    #[case("50%", Some(50))]
    #[case("0%", Some(0))]
    #[case("100%", Some(100))]
    #[case("101%", None)]
    #[case("50", None)]
    #[case("12.5%", None)]
    #[case("%", None)]
    #[case("+5%", None)]
    fn percentages(#[case] text: &str, #[case] percent: Option<u8>) {
        assert_eq!(percentage(text), percent);
    }

    #[rstest]
    #[case("http://lockstep-registry.lockstep-system.svc:8080", true)]
    #[case("https://[2001:db8::1]:8501/v1", true)]
    #[case("http://sim.invalid", true)]
    #[case("consul:8500", false)]
    #[case("ftp://x", false)]
    #[case("http://user:secret@host/", false)]
    #[case("http://host/?a=b", false)]
    #[case("http://169.254.169.254/latest", false)]
    #[case("http://[fe80::1]/", false)]
    #[case("http://[::ffff:169.254.169.254]/", false)]
    #[case("http://", false)]
    fn urls(#[case] text: &str, #[case] fits: bool) {
        assert_eq!(url(text).is_ok(), fits, "{:?}", url(text));
    }

    #[rstest]
    #[case("127.0.0.1:9999", true)]
    #[case("haproxy.infra:9999", true)]
    #[case("[::1]:9999", true)]
    #[case("unix:/run/haproxy.sock", true)]
    #[case("::1:9999", false)]
    #[case("127.0.0.1", false)]
    #[case("127.0.0.1:0", false)]
    #[case("127.0.0.1:+1", false)]
    #[case("169.254.1.1:9999", false)]
    #[case("unix:run", false)]
    fn sockets(#[case] text: &str, #[case] fits: bool) {
        assert_eq!(socket(text).is_ok(), fits, "{:?}", socket(text));
    }

    #[rstest]
    #[case("arn:aws:elasticloadbalancing:eu-west-1:123456789012:targetgroup/web/0123456789abcdef", Some(("eu-west-1", "123456789012")))]
    #[case("arn:aws-cn:elasticloadbalancing:cn-north-1:123456789012:targetgroup/web/0123456789abcdef", Some(("cn-north-1", "123456789012")))]
    #[case("arn:aws:elasticloadbalancing:eu-west-1:123456789012:loadbalancer/app/web/1", None)]
    #[case("web", None)]
    fn target_groups(#[case] text: &str, #[case] place: Option<(&str, &str)>) {
        assert_eq!(target_group(text).ok(), place);
    }

    #[rstest]
    #[case("unused/Target.NotInUse", true)]
    #[case("initial/Elb.InitialHealthChecking", true)]
    #[case("unused/Target.NotRegistered", false)]
    #[case("unused", false)]
    #[case("draining/Target.DeregistrationInProgress", false)]
    fn accepted_states(#[case] text: &str, #[case] fits: bool) {
        assert_eq!(accepted_state(text).is_ok(), fits);
    }

    #[rstest]
    #[case("http", true)]
    #[case("http-2", true)]
    #[case("8080", false)]
    #[case("HTTP", false)]
    #[case("a--b", false)]
    #[case("more-than-15-letters", false)]
    fn port_names(#[case] text: &str, #[case] fits: bool) {
        assert_eq!(port_name(text).is_ok(), fits);
    }
}
