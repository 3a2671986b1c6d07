//! Findings: codes for something that a person should fix on a workload.
//!
//! Pods are made by controllers, whose logs nobody reads, so a code goes into the record, from there into Events, and into a warning.
//!
//! Invariant: a warning is one line of at most [`WARNING`] characters, whatever a pod's author called its containers.
//! Absent on purpose: when a finding holds (`decide`).

use crate::text::one_line;

/// The API server cuts longer warnings.
pub(super) const WARNING: usize = 256;

/// A code; the order is the one in which a record lists them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Finding {
    /// Every container keeps a hook of its own, and at least one of them is too short or cannot be read.
    FinalizerWithoutSleep,
    /// The pod asks to be killed at once.
    GraceZero,
    /// An outsider polls, and may poll the pod itself.
    HealthCheckPollsPod,
    /// A probe's restart waits for the sleep.
    LivenessRestartWaits,
    /// No container has a readiness probe.
    NoReadinessProbe,
    /// A container's own hook is visibly shorter than the sleep that is needed.
    OwnPreStopShort,
    /// There is no sleep for this pod's operating system.
    PreStopUnsupported,
    /// A limit made the sleep shorter, or left none.
    SleepCut,
}

impl Finding {
    /// Every code, in order.
    pub const ALL: [Self; 8] = [
        Self::FinalizerWithoutSleep,
        Self::GraceZero,
        Self::HealthCheckPollsPod,
        Self::LivenessRestartWaits,
        Self::NoReadinessProbe,
        Self::OwnPreStopShort,
        Self::PreStopUnsupported,
        Self::SleepCut,
    ];

    /// The code.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::FinalizerWithoutSleep => "FinalizerWithoutSleep",
            Self::GraceZero => "GraceZero",
            Self::HealthCheckPollsPod => "HealthCheckPollsPod",
            Self::LivenessRestartWaits => "LivenessRestartWaits",
            Self::NoReadinessProbe => "NoReadinessProbe",
            Self::OwnPreStopShort => "OwnPreStopShort",
            Self::PreStopUnsupported => "PreStopUnsupported",
            Self::SleepCut => "SleepCut",
        }
    }

    /// The finding of that code.
    pub fn of_code(code: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|finding| finding.as_str() == code)
    }

    /// What it is, in one sentence; the Event and the warning say it.
    pub fn meaning(self) -> &'static str {
        match self {
            Self::FinalizerWithoutSleep => {
                "the finalizer keeps the pod object, but no container sleeps long enough before it stops: traffic can still arrive"
            }
            Self::GraceZero => "terminationGracePeriodSeconds is 0: the pod is killed at once, while traffic still arrives",
            Self::HealthCheckPollsPod => "a load balancer that polls the pod itself sees it healthy during the whole sleep",
            Self::LivenessRestartWaits => "a restart by a liveness or startup probe waits for the sleep as well",
            Self::NoReadinessProbe => "no container has a readiness probe: the pod counts as ready as soon as it runs",
            Self::OwnPreStopShort => "an own preStop is shorter than the drain delay and the margin",
            Self::PreStopUnsupported => "a Windows container has no sleep command, and the native sleep needs Kubernetes 1.30",
            Self::SleepCut => "a limit cut the sleep: traffic can still arrive when it is over",
        }
    }

    /// What to do about it.
    pub fn remedy(self) -> &'static str {
        match self {
            Self::FinalizerWithoutSleep => "remove the preStop hooks, or let them sleep first",
            Self::GraceZero => "set it to the time that the application needs to stop",
            Self::HealthCheckPollsPod => "let what is polled fail once the pod terminates",
            Self::LivenessRestartWaits => "set terminationGracePeriodSeconds at the probe",
            Self::NoReadinessProbe => "add one to the container that serves",
            Self::OwnPreStopShort => "make it longer, or remove it",
            Self::PreStopUnsupported => "raise the cluster to 1.30, or add a preStop of your own",
            Self::SleepCut => "raise maxSleep or maxGrace, or lower the grace period or the drain delay",
        }
    }

    /// The admission warning: the code, what it is and what to do; `about` names the container or the numbers.
    pub(super) fn warning(self, about: &str) -> String {
        let about = if about.is_empty() { String::new() } else { format!(" ({about})") };
        bounded(&format!("lockstep: {}: {}{about}; {}", self.as_str(), self.meaning(), self.remedy()))
    }
}

/// One clean line that the API server passes on uncut.
pub(super) fn bounded(text: &str) -> String {
    one_line(text).take(WARNING).collect()
}

/// A name that somebody else chose, short enough to stand in a warning.
pub(super) fn shown(name: &str) -> String {
    const LONGEST: usize = 40;
    let mut shown: String = one_line(name).take(LONGEST).collect();
    if name.chars().nth(LONGEST).is_some() {
        shown.push('…');
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_are_whole_within_the_limit() {
        for finding in Finding::ALL {
            let warning = finding.warning(&format!("container {}", shown(&"x".repeat(300))));
            assert!(warning.chars().count() <= WARNING && warning.ends_with(finding.remedy()), "{}: {warning}", warning.chars().count());
            assert_eq!(Finding::of_code(finding.as_str()), Some(finding));
        }
    }

    #[test]
    fn codes_stand_in_the_order_of_their_names() {
        assert!(Finding::ALL.windows(2).all(|pair| pair[0].as_str() < pair[1].as_str() && pair[0] < pair[1]));
    }

    #[test]
    fn a_foreign_name_cannot_break_the_line() {
        assert_eq!(shown("a\nb"), "a b");
        assert_eq!(bounded(&"y\n".repeat(300)).chars().count(), WARNING);
    }
}
