//! From drain delay to sleep and grace period.
//!
//! Invariant: a sleep is whole seconds, at least 1 or none at all; it never pushes the grace period above `maxGrace`.
//! Invariant: all sums are total: no delay, however long, overflows.
//! Absent on purpose: which container gets the sleep (`decide`), how it is written (`patch`).

use std::time::Duration;

use crate::config::{Injection, PreStop};

/// Where the kubelet sleeps by itself: `PodLifecycleSleepAction` is on by default from this minor version of Kubernetes 1.
const NATIVE_SINCE: u32 = 30;
/// What a pod without `terminationGracePeriodSeconds` gets from the API server.
pub const DEFAULT_GRACE: i64 = 30;

/// Form in which a sleep is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SleepForm {
    /// The kubelet's own: `sleep: {seconds: N}`.
    Native,
    /// The command `["sleep", "N"]`, which needs a shell utility in the image.
    Command,
}

/// The sums behind a sleep, as a person would write them down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sums {
    /// The longest drain delay of the matching bindings.
    pub drain: Duration,
    /// Added to it.
    pub margin: Duration,
    /// Both together, in whole seconds, before any limit.
    pub wanted: u64,
    /// What `maxSleep` left of it.
    pub after_max_sleep: u64,
    /// What `maxGrace` left of that: the sleep.
    pub seconds: u64,
    /// The grace period that the pod asked for.
    pub grace_before: i64,
}

/// The form that fits the configuration, the API server and every node; a version that cannot be read counts as old.
pub fn sleep_form<'v>(pre_stop: PreStop, api_server: &str, nodes: impl IntoIterator<Item = &'v str>) -> SleepForm {
    match pre_stop {
        PreStop::Auto if is_native(api_server) && nodes.into_iter().all(is_native) => SleepForm::Native,
        _ => SleepForm::Command,
    }
}

/// Whether this reads as a version of Kubernetes at all.
pub fn is_version(version: &str) -> bool {
    minor(version).is_some()
}

impl Sums {
    /// The sleep for a drain delay, where a pod asked for `grace_before` seconds (at least 1).
    pub fn new(drain: Duration, grace_before: i64, injection: &Injection) -> Self {
        let sum = drain.saturating_add(injection.margin);
        let wanted = sum.as_secs().saturating_add(u64::from(sum.subsec_nanos() > 0));
        let after_max_sleep = wanted.min(injection.max_sleep.as_secs());
        let room = injection.max_grace.as_secs().saturating_sub(u64::try_from(grace_before).unwrap_or(0));
        Self { drain, margin: injection.margin, wanted, after_max_sleep, seconds: after_max_sleep.min(room), grace_before }
    }

    /// No sleep at all.
    pub fn none(drain: Duration, grace_before: i64, injection: &Injection) -> Self {
        Self { drain, margin: injection.margin, wanted: 0, after_max_sleep: 0, seconds: 0, grace_before }
    }

    /// Whether a limit made the sleep shorter.
    pub fn is_cut(&self) -> bool {
        self.seconds < self.wanted
    }
}

/// What a pod asks for with its `terminationGracePeriodSeconds`.
pub(super) fn grace_of(field: Option<i64>) -> i64 {
    match field {
        None => DEFAULT_GRACE,
        Some(negative) if negative < 0 => 1,
        Some(grace) => grace,
    }
}

fn is_native(version: &str) -> bool {
    minor(version).is_some_and(|(major, minor)| major > 1 || (major == 1 && minor >= NATIVE_SINCE))
}

/// Major and minor of `v1.30.4-vendor.12`, and of `1.30+` as some servers say.
fn minor(version: &str) -> Option<(u32, u32)> {
    let version = version.trim();
    let (major, rest) = version.strip_prefix('v').unwrap_or(version).split_once('.')?;
    let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    let number = |text: &str| text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok()).flatten();
    Some((number(major)?, number(&rest[..digits])?))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::sum(30_000, 15_000, 30, 45, 45)]
    #[case::rounded_up_once(1_500, 5_000, 30, 7, 7)]
    #[case::margin_alone(0, 15_000, 30, 15, 15)]
    #[case::nothing(0, 0, 30, 0, 0)]
    #[case::a_little(1, 0, 30, 1, 1)]
    #[case::at_max_sleep(345_000, 15_000, 30, 360, 360)]
    #[case::above_max_sleep(345_001, 15_000, 30, 361, 360)]
    #[case::at_max_grace(30_000, 15_000, 525, 45, 45)]
    #[case::above_max_grace(30_000, 15_000, 526, 45, 44)]
    #[case::no_room(30_000, 15_000, 570, 45, 0)]
    #[case::far_above(30_000, 15_000, i64::MAX, 45, 0)]
    #[case::forever(u64::MAX, 15_000, 30, 18_446_744_073_709_567, 360)]
    fn sums(#[case] drain: u64, #[case] margin: u64, #[case] grace: i64, #[case] wanted: u64, #[case] seconds: u64) {
        let injection = Injection { margin: Duration::from_millis(margin), ..Injection::default() };
        let sums = Sums::new(Duration::from_millis(drain), grace, &injection);
        assert_eq!((sums.wanted, sums.seconds, sums.is_cut()), (wanted, seconds, seconds < wanted));
    }

    #[rstest]
    #[case("1.36", true)]
    #[case("v1.36.3-eks-1", true)]
    #[case("", false)]
    #[case("latest", false)]
    #[case("1", false)]
    fn versions(#[case] text: &str, #[case] readable: bool) {
        assert_eq!(is_version(text), readable);
    }

    #[rstest]
    #[case(PreStop::Auto, "1.30", &["v1.30.0"], SleepForm::Native)]
    #[case(PreStop::Auto, "v1.30.4-vendor.12", &["v1.31.0+k3s1", "v1.30.9"], SleepForm::Native)]
    #[case(PreStop::Auto, "1.30+", &[], SleepForm::Native)]
    #[case(PreStop::Auto, "2.0", &[], SleepForm::Native)]
    #[case(PreStop::Auto, "1.29.9", &["v1.30.0"], SleepForm::Command)]
    #[case(PreStop::Auto, "1.30", &["v1.30.0", "v1.29.3"], SleepForm::Command)]
    #[case(PreStop::Auto, "1.3", &[], SleepForm::Command)]
    #[case(PreStop::Auto, "newest", &[], SleepForm::Command)]
    #[case(PreStop::Auto, "1.30", &[""], SleepForm::Command)]
    #[case(PreStop::Exec, "1.34", &[], SleepForm::Command)]
    fn forms(#[case] pre_stop: PreStop, #[case] server: &str, #[case] nodes: &[&str], #[case] wanted: SleepForm) {
        assert_eq!(sleep_form(pre_stop, server, nodes.iter().copied()), wanted);
    }

    #[rstest]
    #[case(None, 30)]
    #[case(Some(0), 0)]
    #[case(Some(-5), 1)]
    #[case(Some(i64::MIN), 1)]
    #[case(Some(45), 45)]
    fn grace(#[case] field: Option<i64>, #[case] wanted: i64) {
        assert_eq!(grace_of(field), wanted);
    }
}
