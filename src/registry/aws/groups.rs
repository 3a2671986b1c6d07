//! The questions about target groups themselves: what they are, who keeps them, how long they drain.
//!
//! One call tells of up to twenty groups, so whoever needs to know of one asks along for those whose answers are missing or the oldest.
//! Who asks at the same time waits, and finds that it was told.
//!
//! Invariant: all questions of one driver stay within [`QUESTIONS`], whoever asks: reads, changes, drain delays.
//! Invariant: one group that is missing or refused keeps no other from being known, and costs a question one call more at the most.
//! Absent on purpose: keeping drain delays, and asking them again (`delays`).

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::time::{Instant, timeout};

use super::api::Api;
use super::budget::Budget;
use super::failure::Failure;
use super::group::{Fact, Group, Kind, Owner};
use crate::config::{Mode, TargetGroup};
use crate::registry::{CallError, Rate};

/// With the pace of a leader (5 calls a second, 20 at once) three replicas stay within what AWS allows a whole account: 10 and 40.
const QUESTIONS: Rate = Rate { per_second: 1.5, burst: 6.0 };
/// Drain delays leave so many to the questions that a read or a change waits for.
const KEPT: f64 = 2.0;
/// Shorter than a call, so that there is time for the call itself.
const PATIENCE: Duration = Duration::from_secs(3);
/// Groups of one call: `DescribeTags` takes 20 resources (API reference), and `DescribeTargetGroups` no more
/// (yet-another-cloudwatch-exporter, issue 278).
const PAGE: usize = 20;
const DELAY: &str = "deregistration_delay.timeout_seconds";

/// What bindings say of target groups.
type Bound = BTreeMap<Arc<str>, TargetGroup>;

/// The target groups of a registry.
#[derive(Debug)]
pub(super) struct Groups {
    api: Api,
    bound: ArcSwap<Bound>,
    known: Mutex<HashMap<Arc<str>, Arc<Group>>>,
    kinds: tokio::sync::Mutex<()>,
    owners: tokio::sync::Mutex<()>,
    /// Where those who ask for drain delays stand in line.
    delays: tokio::sync::Mutex<()>,
    questions: Budget,
}

/// What AWS tells of many groups in one call.
trait Question {
    type Answer: Clone;

    /// What is known of it.
    fn fact(group: &Group) -> &Fact<Self::Answer>;

    /// One of these questions at a time.
    fn asking(groups: &Groups) -> &tokio::sync::Mutex<()>;

    /// Whether it makes sense to ask it of a group.
    fn applies(group: &Group, mode: Mode) -> bool;

    /// Asks it of these groups.
    async fn ask(api: &Api, arns: &[Arc<str>]) -> Result<HashMap<Arc<str>, Self::Answer>, Failure>;
}

/// What is it?
struct WhatIsIt;

/// Who keeps its targets?
struct WhoKeepsIt;

impl Groups {
    /// The groups behind `api`; no binding names any of them yet.
    pub(super) fn new(api: Api) -> Self {
        let questions = Budget::new(QUESTIONS);
        let line = tokio::sync::Mutex::default;
        Self { api, bound: ArcSwap::default(), known: Mutex::default(), kinds: line(), owners: line(), delays: line(), questions }
    }

    /// From now on bindings say this, and name no other group.
    pub(super) fn bind(&self, bound: Bound) {
        // One that is being asked about stays, for whoever waits for the answer.
        let stays = |arn: &Arc<str>, group: &mut Arc<Group>| bound.contains_key(arn) || Arc::strong_count(group) > 1;
        self.known.lock().unwrap_or_else(PoisonError::into_inner).retain(stays);
        self.bound.store(Arc::new(bound));
    }

    /// What bindings say at present, by the ARN of the group.
    pub(super) fn bound(&self) -> Arc<Bound> {
        self.bound.load_full()
    }

    /// The API that they are asked of.
    pub(super) fn api(&self) -> &Api {
        &self.api
    }

    /// The group of that ARN.
    pub(super) fn group(&self, arn: &str) -> Arc<Group> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.entry(arn.into()).or_default().clone()
    }

    /// What the group is.
    pub(super) async fn kind(&self, arn: &str) -> Result<Kind, CallError> {
        self.answer::<WhatIsIt>(arn).await
    }

    /// Who keeps its targets.
    pub(super) async fn owner(&self, arn: &str) -> Result<Owner, CallError> {
        self.answer::<WhoKeepsIt>(arn).await
    }

    /// How long the load balancer may still send to a deregistered target.
    pub(super) async fn drain_delay(&self, arn: &str) -> Result<Option<Duration>, CallError> {
        let kind = self.kind(arn).await?;
        let turn = async {
            let _line = self.delays.lock().await;
            self.questions.turn(KEPT, PATIENCE).await
        };
        if !timeout(PATIENCE, turn).await.unwrap_or(false) {
            return Err(too_many());
        }
        let Some(text) = self.api.attribute(arn, DELAY).await? else { return Ok(None) };
        let unreadable = || CallError::Failed(format!("{DELAY} is no number of seconds"));
        kind.drain_delay(&text).map(Some).ok_or_else(unreadable)
    }

    async fn answer<Q: Question>(&self, arn: &str) -> Result<Q::Answer, CallError> {
        let group = self.group(arn);
        let fact = Q::fact(&group);
        // Boxed: it is seldom needed, and would make the future of every call large and deep.
        let learnt = if fact.is_due() { Box::pin(self.learn::<Q>(arn, fact)).await } else { Ok(()) };
        // Old answers are better than an outage.
        fact.answer().ok_or_else(|| {
            learnt.err().or(fact.failure()).unwrap_or_else(|| CallError::Failed("it says nothing of the target group".to_owned()))
        })
    }

    async fn learn<Q: Question>(&self, arn: &str, fact: &Fact<Q::Answer>) -> Result<(), CallError> {
        let came = Instant::now();
        let known = fact.answer().is_some();
        let _asking = match Q::asking(self).try_lock() {
            Ok(asking) => asking,
            // What is known will do until the one who asks was told.
            Err(_) if known => return Ok(()),
            Err(_) => Q::asking(self).lock().await,
        };
        if !fact.is_due() {
            return Ok(());
        }
        if let Some(error) = fact.failure_since(came) {
            return Err(error);
        }
        let patience = if known { Duration::ZERO } else { PATIENCE };
        let mut page = self.page::<Q>(arn);
        loop {
            if !self.questions.turn(0.0, patience).await {
                return Err(fact.failure().unwrap_or_else(too_many));
            }
            match Q::ask(&self.api, &page).await {
                Ok(answers) => {
                    self.told::<Q>(&page, &answers);
                    return Ok(());
                }
                // Which one it was the next questions find out. This one is owed an answer, and costs no third call.
                Err(failure) if failure.names_one() && page.len() > 1 => {
                    page.iter().for_each(|arn| Q::fact(&self.group(arn)).doubt(page.len()));
                    page.truncate(1);
                }
                Err(failure) => {
                    if failure.names_one() {
                        fact.doubt(1);
                    }
                    let error = failure.call();
                    page.iter().for_each(|arn| Q::fact(&self.group(arn)).fail(error.clone()));
                    tracing::debug!(service = arn, %error, "target groups could not be looked at; what was known counts");
                    return Err(error);
                }
            }
        }
    }

    fn told<Q: Question>(&self, page: &[Arc<str>], answers: &HashMap<Arc<str>, Q::Answer>) {
        for arn in page {
            let group = self.group(arn);
            match answers.get(arn) {
                Some(answer) => Q::fact(&group).learn(answer.clone()),
                None => Q::fact(&group).fail(CallError::ServiceMissing(arn.to_string())),
            }
        }
    }

    /// The group in question, and with it those that are due, the longest unknown first. One that may be missing has few beside it, since the
    /// question about all of them is refused then.
    fn page<Q: Question>(&self, arn: &str) -> Vec<Arc<str>> {
        let due = |(other, bound): (&Arc<str>, &TargetGroup)| {
            let group = self.group(other);
            let fact = Q::fact(&group);
            let wanted = **other != *arn && Q::applies(&group, bound.mode) && fact.is_due();
            wanted.then(|| (fact.answered_at(), other.clone(), fact.company()))
        };
        let mut others: Vec<_> = self.bound.load().iter().filter_map(due).collect();
        others.sort();
        let mut most = Q::fact(&self.group(arn)).company().min(PAGE);
        let mut page = vec![Arc::from(arn)];
        for (_, other, company) in others {
            if page.len() < most.min(company) {
                most = most.min(company);
                page.push(other);
            }
        }
        page
    }
}

impl Question for WhatIsIt {
    type Answer = Kind;

    fn fact(group: &Group) -> &Fact<Kind> {
        group.kind()
    }

    fn asking(groups: &Groups) -> &tokio::sync::Mutex<()> {
        &groups.kinds
    }

    fn applies(_: &Group, _: Mode) -> bool {
        true
    }

    async fn ask(api: &Api, arns: &[Arc<str>]) -> Result<HashMap<Arc<str>, Kind>, Failure> {
        let described = api.groups(arns).await?;
        let kinds = described.iter().filter_map(|group| Some((group.target_group_arn()?.into(), Kind::of(group))));
        let kinds: HashMap<Arc<str>, Kind> = kinds.collect();
        for (service, kind) in &kinds {
            if let Some(reason) = &kind.unfit {
                tracing::warn!(%service, reason, "a target group can have no pods as targets");
            }
        }
        Ok(kinds)
    }
}

impl Question for WhoKeepsIt {
    type Answer = Owner;

    fn fact(group: &Group) -> &Fact<Owner> {
        group.owner()
    }

    fn asking(groups: &Groups) -> &tokio::sync::Mutex<()> {
        &groups.owners
    }

    /// Who only observes needs no right to read tags; and a group that is there is known to be.
    fn applies(group: &Group, mode: Mode) -> bool {
        mode == Mode::Own && group.kind().answer().is_some()
    }

    async fn ask(api: &Api, arns: &[Arc<str>]) -> Result<HashMap<Arc<str>, Owner>, Failure> {
        let tags = api.tags(arns).await?;
        Ok(tags.into_iter().map(|(arn, keys)| (arn, Owner::of(&keys))).collect())
    }
}

fn too_many() -> CallError {
    CallError::Throttled("so many target groups are asked about one after the other; this one has its turn soon".to_owned())
}
