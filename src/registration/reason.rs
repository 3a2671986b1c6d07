//! Why a pod stands where it stands: one closed set of words for conditions, Events, metrics and logs.
//!
//! An operator who reads a word in `kubectl describe` finds the same word in the metric, the log and the documentation.
//!
//! Invariant: a word is spelled once, here; reading back what was written gives the same reason.
//! Absent on purpose: the sentence behind a reason (written where it is decided), findings of admission.

/// Why something is as it is, or what was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Reason {
    /// No address yet, or the containers were never ready.
    WaitingForContainers,
    /// Told to the registry, not acknowledged yet.
    Registering,
    /// Acknowledged by every registry.
    Registered,
    /// Containers are not ready and the target is being taken out of use.
    NotServing,
    /// The node is lost and the target is being taken out of use.
    NodeLost,
    /// No binding selects the pod.
    NoBinding,
    /// A binding names a container port that the pod does not have.
    PortNotFound,
    /// The pod has no address of the family that a binding wants.
    NoMatchingAddress,
    /// The configuration names a registry that this program cannot open.
    RegistryUnusable,
    /// The pod has as many claims as a condition may hold.
    ClaimsFull,
    /// The debts are as many as their ConfigMap may hold.
    DebtsFull,
    /// `gateTimeout` has passed.
    GateTimeout,
    /// `drainTimeout` has passed.
    DrainTimeout,
    /// `forceTimeout` has passed.
    ForceTimeout,
    /// The claims' condition lists claims.
    Claimed,
    /// The claims' condition lists none.
    NoClaims,
    /// The pod is being deleted and its targets get no new traffic.
    Draining,
    /// The pod has ended and its targets are being taken out.
    Deregistering,
    /// Every registry has let the pod's targets go.
    Deregistered,
    /// `lockstep release` let the pod go.
    Released,
    /// A deletion gave less time than the drain needs.
    GraceOverridden,
    /// A running pod was taken into care.
    Adopted,
    /// A debt was given up.
    DebtDropped,
    /// Calls to a registry fail.
    RegistryFailing,
    /// The configuration cannot be used as it stands.
    ConfigurationInvalid,
    /// Nothing is owed and nothing is held.
    Nothing,
}

impl Reason {
    /// Every reason.
    pub const ALL: [Self; 26] = [
        Self::WaitingForContainers,
        Self::Registering,
        Self::Registered,
        Self::NotServing,
        Self::NodeLost,
        Self::NoBinding,
        Self::PortNotFound,
        Self::NoMatchingAddress,
        Self::RegistryUnusable,
        Self::ClaimsFull,
        Self::DebtsFull,
        Self::GateTimeout,
        Self::DrainTimeout,
        Self::ForceTimeout,
        Self::Claimed,
        Self::NoClaims,
        Self::Draining,
        Self::Deregistering,
        Self::Deregistered,
        Self::Released,
        Self::GraceOverridden,
        Self::Adopted,
        Self::DebtDropped,
        Self::RegistryFailing,
        Self::ConfigurationInvalid,
        Self::Nothing,
    ];

    /// The word, in CamelCase as Kubernetes wants it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::WaitingForContainers => "WaitingForContainers",
            Self::Registering => "Registering",
            Self::Registered => "Registered",
            Self::NotServing => "NotServing",
            Self::NodeLost => "NodeLost",
            Self::NoBinding => "NoBinding",
            Self::PortNotFound => "PortNotFound",
            Self::NoMatchingAddress => "NoMatchingAddress",
            Self::RegistryUnusable => "RegistryUnusable",
            Self::ClaimsFull => "ClaimsFull",
            Self::DebtsFull => "DebtsFull",
            Self::GateTimeout => "GateTimeout",
            Self::DrainTimeout => "DrainTimeout",
            Self::ForceTimeout => "ForceTimeout",
            Self::Claimed => "Claimed",
            Self::NoClaims => "NoClaims",
            Self::Draining => "Draining",
            Self::Deregistering => "Deregistering",
            Self::Deregistered => "Deregistered",
            Self::Released => "Released",
            Self::GraceOverridden => "GraceOverridden",
            Self::Adopted => "Adopted",
            Self::DebtDropped => "DebtDropped",
            Self::RegistryFailing => "RegistryFailing",
            Self::ConfigurationInvalid => "ConfigurationInvalid",
            Self::Nothing => "Nothing",
        }
    }

    /// The reason of that word; `None` where the word is not ours.
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| reason.as_str() == word)
    }

    /// Whether an Event of this reason asks a person to look.
    pub fn warns(self) -> bool {
        matches!(
            self,
            Self::PortNotFound
                | Self::NoMatchingAddress
                | Self::RegistryUnusable
                | Self::ClaimsFull
                | Self::DebtsFull
                | Self::GateTimeout
                | Self::DrainTimeout
                | Self::ForceTimeout
                | Self::GraceOverridden
                | Self::DebtDropped
                | Self::RegistryFailing
                | Self::ConfigurationInvalid
        )
    }
}

#[cfg(test)]
mod tests {
    use super::Reason;

    #[test]
    fn words_are_unique_and_read_back() {
        for reason in Reason::ALL {
            assert_eq!(Reason::parse(reason.as_str()), Some(reason));
        }
        assert_eq!(Reason::parse("SomethingElse"), None);
    }
}
