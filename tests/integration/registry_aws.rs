//! The aws driver against the simulator: states and time, batches that are refused in part, zones, refusals, credentials, pace.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use aws_credential_types::Credentials;
use aws_credential_types::credential_fn::provide_credentials_fn;
use aws_credential_types::provider::error::CredentialsError;
use lockstep::config::Mode;
use lockstep::reconcile::OpenError;
use lockstep::reconcile::clock::Instant;
use lockstep::reconcile::limits::{Limiter, Request};
use lockstep::registry::aws::Aws;
use lockstep::registry::text::LONGEST;
use lockstep::registry::{CallError, ChangeError, Operation, Registry};
use lockstep::target::TargetState;
use rstest::rstest;

use crate::elbv2::Fault;
use crate::elbv2::model::{Group, Refusal};
use crate::registry_aws_ground::{Ground, addresses, changes, config, driver, with_credentials};
use crate::stand_in::Front;

const SECOND: Duration = Duration::from_secs(1);

fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

#[rstest]
#[case::alb("HTTP", 5, 40, 5, 5)]
#[case::alb_with_a_delay("HTTPS", 300, 40, 300, 300)]
#[case::nlb_is_slow_whatever_is_set("TCP", 0, 210, 120, 120)]
#[case::nlb_with_a_delay("TLS", 300, 210, 300, 300)]
#[tokio::test]
async fn the_life_of_a_target(#[case] protocol: &'static str, #[case] delay: u64, #[case] up: u32, #[case] down: u32, #[case] told: u64) {
    let ground = Ground::start(Group { protocol, delay, ..Group::default() }).await;
    let target = at("10.0.0.1:8080");
    assert_eq!(ground.driver.drain_delay(&ground.arn).await, Ok(Some(Duration::from_secs(told))));
    assert_eq!(ground.register(&[target]).await, [Ok(())]);
    assert_eq!(ground.states().await, [(target, TargetState::Initial)]);
    ground.simulator.pass(SECOND * (up - 1));
    assert_eq!(ground.states().await, [(target, TargetState::Initial)]);
    ground.simulator.pass(SECOND);
    assert_eq!(ground.states().await, [(target, TargetState::Active)]);
    assert_eq!(ground.deregister(&[target]).await, [Ok(())]);
    ground.simulator.pass(SECOND * (down - 1));
    assert_eq!(ground.states().await, [(target, TargetState::Draining)]);
    ground.simulator.pass(SECOND);
    assert_eq!(ground.states().await, []);
    assert_eq!(ground.deregister(&[target]).await, [Ok(())], "what is gone may be taken out again");
}

#[tokio::test]
async fn a_target_that_drains_can_be_registered_again() {
    let ground = Ground::start(Group::default()).await;
    let target = at("10.0.0.1:8080");
    ground.register(&[target]).await;
    ground.simulator.pass(SECOND * 60);
    ground.deregister(&[target]).await;
    assert_eq!(ground.register(&[target]).await, [Ok(())]);
    assert_eq!(ground.states().await, [(target, TargetState::Initial)]);
}

#[rstest]
#[case::no_listener(Group { listener: false, ..Group::default() }, &[], TargetState::Unused)]
#[case::no_listener_but_accepted(Group { listener: false, ..Group::default() }, &["unused/Target.NotInUse"], TargetState::Active)]
#[case::ill(Group { ill: vec!["10.0.0.1".parse().unwrap()], ..Group::default() }, &["unused/Target.NotInUse"], TargetState::Unhealthy)]
#[tokio::test]
async fn states_with_a_reason(#[case] group: Group, #[case] accepted: &[&str], #[case] state: TargetState) {
    let ground = Ground::bound(group, Mode::Own, accepted).await;
    ground.register(&[at("10.0.0.1:8080")]).await;
    ground.simulator.pass(SECOND * 60);
    assert_eq!(ground.states().await, [(at("10.0.0.1:8080"), state)]);
}

#[tokio::test]
async fn a_read_that_shows_the_past_is_followed_by_one_that_does_not() {
    let ground = Ground::start(Group::default()).await;
    ground.simulator.pass(SECOND * 60);
    ground.simulator.model().lag = SECOND * 3;
    let target = at("10.0.0.1:8080");
    ground.register(&[target]).await;
    assert_eq!(ground.states().await, [], "as if it had never come");
    assert_eq!(ground.register(&[target]).await, [Ok(())], "and asking again does no harm");
    ground.simulator.pass(SECOND * 3);
    assert_eq!(ground.states().await, [(target, TargetState::Initial)]);
}

#[tokio::test]
async fn a_listing_of_a_thousand_targets_is_whole() {
    let ground = Ground::start(Group::default()).await;
    let all = addresses("10.0", 1000);
    for some in all.chunks(ground.driver.capabilities().batch.get()) {
        assert!(ground.register(some).await.iter().all(Result::is_ok));
    }
    assert_eq!(ground.count("RegisterTargets"), 5);
    let mut listed: Vec<_> = ground.states().await.into_iter().map(|(address, _)| address).collect();
    listed.sort();
    assert_eq!(listed, all);
}

#[tokio::test]
async fn one_bad_target_does_not_keep_the_others_out() {
    let all = addresses("10.0", 200);
    let ground = Ground::start(Group { bad: vec![all[77].ip()], ..Group::default() }).await;
    let results = ground.register(&all).await;
    assert_eq!(ground.count("RegisterTargets"), 2, "the refusal names it, so: all, then the others");
    for (place, result) in results.iter().enumerate() {
        match result {
            Err(ChangeError::Refused(text)) if place == 77 => assert!(text.starts_with("InvalidTarget: "), "{text}"),
            result => assert_eq!((place != 77, result), (true, &Ok(())), "{place}"),
        }
    }
    assert_eq!(ground.states().await.len(), 199);
}

#[tokio::test]
async fn a_bad_target_that_is_named_at_the_end_of_many_words_is_found_at_once() {
    let all = addresses("10.0", 200);
    let ground = Ground::start(Group::default()).await;
    let words = format!("{} '{}'", "A target is not valid. ".repeat(20), all[77].ip());
    ground.simulator.model().fault("RegisterTargets", Fault::Refused(Refusal::new(400, "ValidationError", words)));
    let results = ground.register(&all).await;
    assert_eq!(ground.count("RegisterTargets"), 2, "all, then the others");
    let refused: Vec<_> = results.iter().enumerate().filter(|(_, result)| result.is_err()).collect();
    assert!(matches!(&refused[..], [(77, Err(ChangeError::Refused(text)))] if text.chars().count() <= LONGEST + 1), "{refused:?}");
}

#[tokio::test]
async fn a_bad_target_that_nobody_names_is_found_too() {
    let all = addresses("10.0", 200);
    let ground = Ground::start(Group::default()).await;
    let nameless = || Fault::Refused(Refusal::new(400, "ValidationError", "A target is not valid"));
    // The first half is refused each time, down to the first target.
    (0..8).for_each(|_| ground.simulator.model().fault("RegisterTargets", nameless()));
    let results = ground.register(&all).await;
    assert!(matches!(results[0], Err(ChangeError::Refused(_))), "{:?}", results[0]);
    let late: Vec<_> = all.iter().zip(&results).filter(|(_, result)| matches!(result, Err(ChangeError::Throttled(_)))).collect();
    assert_eq!(ground.count("RegisterTargets"), 11, "what is left goes with the next batch");
    let late: Vec<_> = late.into_iter().map(|(address, _)| *address).collect();
    assert!(ground.register(&late).await.iter().all(Result::is_ok));
    assert_eq!(ground.states().await.len(), 199);
}

#[tokio::test]
async fn many_bad_targets_cost_a_bounded_number_of_calls() {
    let all = addresses("10.0", 100);
    let ground = Ground::start(Group { bad: all.iter().map(SocketAddr::ip).collect(), ..Group::default() }).await;
    let results = ground.register(&all).await;
    assert_eq!(ground.count("RegisterTargets"), 11);
    assert!(results.iter().all(|result| matches!(result, Err(ChangeError::Refused(_) | ChangeError::Throttled(_)))), "{results:?}");
    assert!(results.iter().any(|result| matches!(result, Err(ChangeError::Refused(_)))));
}

#[tokio::test]
async fn a_group_is_filled_to_its_last_place_and_the_rest_is_told() {
    let all = addresses("10.0", 200);
    let ground = Ground::start(Group { room: 150, ..Group::default() }).await;
    let results = ground.register(&all).await;
    let full = |result: &&Result<(), ChangeError>| matches!(result, Err(ChangeError::Full(text)) if text.starts_with("TooManyTargets: "));
    assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 150);
    assert_eq!(results.iter().filter(full).count(), 50);
    assert_eq!(ground.states().await.len(), 150);
}

#[tokio::test]
async fn what_was_done_before_a_call_failed_is_not_lost() {
    let all = addresses("10.0", 4);
    let ground = Ground::start(Group { bad: vec![all[0].ip()], ..Group::default() }).await;
    let mixed = [changes(Operation::Deregister, &all[3..]), changes(Operation::Register, &all[1..3])].concat();
    ground.simulator.model().fault("RegisterTargets", Fault::Refused(Refusal::new(400, "Throttling", "Rate exceeded")));
    let results = ground.driver.apply(&ground.arn, &mixed).await.unwrap();
    assert!(matches!(&results[..], [Ok(()), Err(ChangeError::Throttled(_)), Err(ChangeError::Throttled(_))]), "{results:?}");
    ground.simulator.model().fault("RegisterTargets", Fault::Refused(Refusal::new(403, "AccessDenied", "no")));
    let results = ground.driver.apply(&ground.arn, &mixed).await.unwrap();
    assert!(matches!(&results[..], [Ok(()), Err(ChangeError::Denied(_)), Err(ChangeError::Denied(_))]), "{results:?}");
    ground.simulator.model().fault("RegisterTargets", Fault::Refused(Refusal::new(500, "InternalFailure", "oh")));
    let failed = ground.driver.apply(&ground.arn, &mixed).await;
    assert!(matches!(failed, Err(CallError::Failed(_))), "nobody knows: {failed:?}");
}

#[tokio::test]
async fn addresses_outside_the_vpc_get_every_zone_and_others_none() {
    let subnets = vec![("10.0.0.0".parse().unwrap(), 16)];
    let mut ground = Ground::start(Group { subnets, ..Group::default() }).await;
    let (inside, outside) = (addresses("10.0", 50), addresses("100.64", 50));
    let all: Vec<_> = inside.iter().chain(&outside).copied().collect();
    let results = ground.register(&all).await;
    assert!(results.iter().all(Result::is_ok), "{results:?}");
    assert_eq!(ground.count("RegisterTargets"), 2, "one refusal tells of all");
    for call in &ground.simulator.model().calls.iter().filter(|call| call.action() == "RegisterTargets").collect::<Vec<_>>()[1..] {
        for (id, zone) in call.targets() {
            assert_eq!(zone.as_deref(), id.starts_with("100.").then_some("all"), "{id}");
        }
    }
    ground.restart();
    assert_eq!(ground.states().await.len(), 100);
    let results = ground.deregister(&all).await;
    assert!(results.iter().all(Result::is_ok), "{results:?}");
    let calls = ground.simulator.model().calls.clone();
    let zones = calls.last().unwrap().targets().into_iter().filter(|(_, zone)| zone.as_deref() == Some("all")).count();
    assert_eq!(zones, 50, "a listing tells of zones too");
}

#[tokio::test]
async fn an_address_that_fits_on_neither_side_is_refused() {
    let ground = Ground::start(Group { subnets: Vec::new(), ..Group::default() }).await;
    let zone = || Fault::Refused(Refusal::new(400, "ValidationError", "Availability Zone of '10.0.0.1' is a riddle"));
    (0..2).for_each(|_| ground.simulator.model().fault("RegisterTargets", zone()));
    let results = ground.register(&[at("10.0.0.1:80"), at("10.0.0.2:80")]).await;
    assert!(matches!(&results[..], [Err(ChangeError::Refused(_)), Ok(())]), "{results:?}");
    assert_eq!(ground.count("RegisterTargets"), 3, "each side once, then the others");
}

#[tokio::test]
async fn ipv6_groups_take_ipv6_addresses() {
    let ground = Ground::start(Group { family: "ipv6", ..Group::default() }).await;
    let results = ground.register(&[at("[fd00::1]:8080"), at("10.0.0.1:8080")]).await;
    assert!(matches!(&results[..], [Ok(()), Err(ChangeError::Refused(text))] if text.contains("family: ipv6")), "{results:?}");
    assert_eq!(ground.states().await, [(at("[fd00::1]:8080"), TargetState::Initial)]);
    assert_eq!(ground.deregister(&[at("[fd00::1]:8080")]).await, [Ok(())]);
}

#[rstest]
#[case("elbv2.k8s.aws/cluster")]
#[case("ingress.k8s.aws/cluster")]
#[case("kubernetes.io/service-name")]
#[case("eks:eks-cluster-name")]
#[tokio::test]
async fn a_group_of_another_controller_is_left_alone(#[case] tag: &str) {
    let tags = [(tag.to_owned(), "prod".to_owned()), ("team".to_owned(), "shop".to_owned())].into();
    let ground = Ground::start(Group { tags, ..Group::default() }).await;
    ground.simulator.model().put(&ground.arn, at("10.0.0.9:80"));
    let mixed = [changes(Operation::Register, &[at("10.0.0.1:80")]), changes(Operation::Deregister, &[at("10.0.0.9:80")])].concat();
    for result in ground.driver.apply(&ground.arn, &mixed).await.unwrap() {
        assert!(matches!(&result, Err(ChangeError::Refused(text)) if text.contains(tag) && text.contains("mode: observe")), "{result:?}");
    }
    assert_eq!((ground.count("RegisterTargets"), ground.count("DeregisterTargets")), (0, 0));
}

#[tokio::test]
async fn an_observed_group_is_read_and_never_changed() {
    let tags = [("elbv2.k8s.aws/cluster".to_owned(), "prod".to_owned())].into();
    let ground = Ground::bound(Group { tags, ..Group::default() }, Mode::Observe, &[]).await;
    ground.simulator.model().denied = vec!["DescribeTags", "RegisterTargets", "DeregisterTargets"];
    ground.simulator.model().put(&ground.arn, at("10.0.0.9:80"));
    ground.simulator.pass(SECOND * 60);
    assert_eq!(ground.states().await, [(at("10.0.0.9:80"), TargetState::Active)]);
    assert_eq!(ground.driver.drain_delay(&ground.arn).await, Ok(Some(SECOND * 300)));
    let results = ground.deregister(&[at("10.0.0.9:80")]).await;
    assert!(matches!(&results[..], [Err(ChangeError::Refused(text))] if text.contains("only observes")), "{results:?}");
    let allowed = ["DescribeTargetGroups", "DescribeTargetGroupAttributes", "DescribeTargetHealth"];
    assert!(ground.simulator.model().calls.iter().all(|call| allowed.contains(&call.action())));
}

#[tokio::test]
async fn what_bindings_say_counts_from_the_next_call_on_and_nothing_else_begins_anew() {
    let ground = Ground::start(Group { listener: false, ..Group::default() }).await;
    let [first, second, third] = ["10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80"].map(at);
    ground.register(&[first]).await;
    assert_eq!(ground.states().await, [(first, TargetState::Unused)]);
    let asked = ground.count("DescribeTargetGroups");

    // A call is on its way when the binding changes: it ends as it began.
    let under_way = changes(Operation::Register, &[second]);
    let mut under_way = Box::pin(ground.driver.apply(&ground.arn, &under_way));
    assert!(futures_util::poll!(&mut under_way).is_pending());
    ground.bind(Mode::Observe, &["unused/Target.NotInUse"]);
    assert_eq!(under_way.await, Ok(vec![Ok(())]));

    assert_eq!(ground.states().await, [first, second].map(|address| (address, TargetState::Active)));
    let refused = ground.register(&[third]).await;
    assert!(matches!(&refused[..], [Err(ChangeError::Refused(text))] if text.contains("only observes")), "{refused:?}");
    ground.bind(Mode::Own, &[]);
    assert_eq!(ground.register(&[third]).await, [Ok(())]);
    assert_eq!(ground.states().await[0], (first, TargetState::Unused));
    assert_eq!(ground.count("DescribeTargetGroups"), asked, "what the group is was known");
}

#[rstest]
#[case(Group { target_type: "instance", ..Group::default() }, "of type instance")]
#[case(Group { target_type: "alb", protocol: "TCP", ..Group::default() }, "of type alb")]
#[case(Group { protocol: "GENEVE", ..Group::default() }, "Gateway Load Balancer")]
#[tokio::test]
async fn a_group_that_can_have_no_pods_has_none_and_says_so(#[case] group: Group, #[case] words: &str) {
    let ground = Ground::start(group).await;
    assert_eq!(ground.states().await, [], "so that no pod is held for its sake");
    let results = ground.register(&[at("10.0.0.1:80")]).await;
    assert!(matches!(&results[..], [Err(ChangeError::Refused(text))] if text.contains(words)), "{results:?}");
}

#[rstest]
#[case::throttled(400, "Throttling", CallError::Throttled("Throttling: no <b>".into()))]
#[case::throttled_too(400, "RequestLimitExceeded", CallError::Throttled("RequestLimitExceeded: no <b>".into()))]
#[case::denied(403, "AccessDenied", CallError::Denied("AccessDenied: no <b>".into()))]
#[case::clock(403, "RequestExpired", CallError::Denied("RequestExpired: no <b>".into()))]
#[case::key(403, "InvalidClientTokenId", CallError::Denied("InvalidClientTokenId: no <b>".into()))]
#[case::gone(400, "TargetGroupNotFound", CallError::ServiceMissing("TargetGroupNotFound: no <b>".into()))]
#[case::broken(503, "ServiceUnavailable", CallError::Failed("ServiceUnavailable: no <b>".into()))]
#[tokio::test]
async fn a_refused_call_is_an_error_of_its_kind(#[case] status: u16, #[case] code: &'static str, #[case] error: CallError) {
    let ground = Ground::start(Group::default()).await;
    ground.states().await;
    let fault = || Fault::Refused(Refusal::new(status, code, "no\t<b>\n"));
    for action in ["DescribeTargetHealth", "RegisterTargets"] {
        ground.simulator.model().fault(action, fault());
    }
    assert_eq!(ground.driver.list(&ground.arn, None).await, Err(error.clone()));
    assert_eq!(ground.driver.apply(&ground.arn, &changes(Operation::Register, &[at("10.0.0.1:80")])).await, Err(error));
    assert_eq!(ground.count("RegisterTargets"), 1, "nothing is sent again below the reconciler");
}

#[rstest]
#[case(502, "<html>Bad Gateway</html>")]
#[case(200, "<html>Sign in")]
#[case(200, "")]
#[case(302, "elsewhere")]
#[tokio::test]
async fn an_answer_of_somebody_else_is_a_failure(#[case] status: u16, #[case] text: &'static str) {
    let ground = Ground::start(Group::default()).await;
    ground.states().await;
    ground.simulator.model().fault("DescribeTargetHealth", Fault::Foreign(status, text));
    let listed = ground.driver.list(&ground.arn, None).await;
    assert!(matches!(listed, Err(CallError::Failed(_))), "{listed:?}");
}

#[tokio::test]
async fn a_lost_answer_leaves_it_open_and_asking_again_does_no_harm() {
    let ground = Ground::start(Group::default()).await;
    ground.states().await;
    ground.simulator.model().fault("RegisterTargets", Fault::AnswerLost);
    let change = changes(Operation::Register, &[at("10.0.0.1:80")]);
    assert_eq!(ground.driver.apply(&ground.arn, &change).await, Err(CallError::Timeout));
    assert_eq!(ground.states().await.len(), 1, "it was done");
    assert_eq!(ground.driver.apply(&ground.arn, &change).await, Ok(vec![Ok(())]));
    assert_eq!(ground.states().await.len(), 1);
}

#[tokio::test]
async fn old_facts_of_a_group_are_better_than_none() {
    let ground = Ground::start(Group::default()).await;
    ground.states().await;
    ground.simulator.model().denied = vec!["DescribeTargetGroups"];
    assert_eq!(ground.register(&[at("10.0.0.1:80")]).await, [Ok(())]);
    assert_eq!(ground.count("DescribeTargetGroups"), 1, "they are not asked for with each call");
    let other = driver(&config(&ground.simulator.url));
    assert!(matches!(other.list(&ground.arn, None).await, Err(CallError::Denied(_))));
}

#[tokio::test]
async fn refused_credentials_are_got_anew() {
    let ground = Ground::start(Group::default()).await;
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = asked.clone();
    let credentials = provide_credentials_fn(move || {
        let nth = counted.fetch_add(1, Ordering::SeqCst);
        async move { Ok(Credentials::new(format!("AKID{nth}"), "secret", None, None, "test")) }
    });
    let driver = with_credentials(&config(&ground.simulator.url), credentials);
    driver.list(&ground.arn, None).await.unwrap();
    driver.list(&ground.arn, None).await.unwrap();
    assert_eq!(asked.load(Ordering::SeqCst), 1, "they are kept");
    ground.simulator.model().refused_keys.insert("AKID0".into(), "ExpiredToken");
    assert!(matches!(driver.list(&ground.arn, None).await, Err(CallError::Denied(text)) if text.starts_with("ExpiredToken")));
    driver.list(&ground.arn, None).await.unwrap();
    assert_eq!(asked.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn without_credentials_nothing_is_sent() {
    let ground = Ground::start(Group::default()).await;
    let nobody = provide_credentials_fn(|| async { Err(CredentialsError::not_loaded("nobody gave any")) });
    let driver = with_credentials(&config(&ground.simulator.url), nobody);
    let listed = driver.list(&ground.arn, None).await;
    assert!(matches!(&listed, Err(CallError::Unavailable(text)) if text.contains("nobody gave any")), "{listed:?}");
    assert_eq!(ground.count("DescribeTargetGroups"), 0);
}

#[tokio::test]
async fn a_certificate_that_nobody_vouches_for_is_refused() {
    let ground = Ground::start(Group::default()).await;
    let front = Front::start(&ground.simulator.url).await;
    let listed = driver(&config(&front.url)).list(&ground.arn, None).await;
    assert!(matches!(&listed, Err(CallError::Unavailable(text)) if text.contains("certificate")), "{listed:?}");
    assert!(ground.simulator.model().calls.is_empty());
}

#[rstest]
#[case("http://169.254.169.254")]
#[case("http://[fe80::1]")]
#[case("http://user:secret@elb.internal")]
fn endpoints_that_are_refused(#[case] endpoint: &str) {
    let opened = Aws::new(&config(endpoint), &Arc::from("subject"), "here");
    assert!(matches!(opened, Err(OpenError::Unusable { .. })), "{endpoint}");
}

/// As fast as the pace allows, with the reads and changes of a large rollout, for a minute.
#[tokio::test]
async fn the_pace_is_within_the_quotas_of_an_account() {
    let ground = Ground::start(Group { room: 10_000, ..Group::default() }).await;
    ground.simulator.model().quotas = true;
    let mut limiter = Limiter::new(ground.driver.pace());
    let mut now = Instant::default();
    let targets = addresses("10.0", 200);
    for turn in 0..300 {
        let request = if turn % 2 == 0 { Request::Change } else { Request::Read };
        let free = limiter.free_at(request, now);
        ground.simulator.pass(free.since(now));
        now = free;
        limiter.take(request, now);
        match request {
            Request::Change => assert!(ground.register(&targets).await.iter().all(Result::is_ok)),
            Request::Read => assert_eq!(ground.states().await.len(), 200),
        }
    }
    assert!(now.0 >= SECOND * 30, "it is a pace: {now:?}");
}
