//! `preStop` hooks: ours, and what can be seen of somebody else's.
//!
//! Invariant: only a sleep exactly as we write it can be ours; everything else is the owner's, also a kind we do not know.
//! Absent on purpose: what a hook means for the grace period (`prestop`).

use std::borrow::Cow;

use serde::de::{IgnoredAny, MapAccess, SeqAccess};

use super::part::{Key, Part, Shape};

/// A `preStop`.
#[derive(Debug, Default)]
pub(super) struct Handler {
    /// Keys, and those of them that hold something.
    pub(super) keys: usize,
    pub(super) actions: usize,
    sleep: Part<SleepAction>,
    exec: Part<ExecAction>,
}

#[derive(Debug, Default)]
struct SleepAction {
    others: usize,
    seconds: Part<i64>,
}

#[derive(Debug, Default)]
struct ExecAction {
    others: usize,
    command: Part<Command>,
}

/// How long a command visibly sleeps, and whether it is the command that we would write.
#[derive(Debug, Default)]
struct Command {
    seconds: Option<f64>,
    ours: Option<u64>,
}

/// A sleep exactly as we write it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ExactSleep {
    Native(u64),
    Command(u64),
}

impl Handler {
    /// The sleep, where this is one exactly as we write it.
    pub(super) fn exact(&self) -> Option<ExactSleep> {
        if self.actions != 1 {
            return None;
        }
        match (&self.sleep, &self.exec) {
            (Part::Found(SleepAction { others: 0, seconds: Part::Found(seconds) }), _) => {
                u64::try_from(*seconds).ok().map(ExactSleep::Native)
            }
            (_, Part::Found(ExecAction { others: 0, command: Part::Found(command) })) => command.ours.map(ExactSleep::Command),
            _ => None,
        }
    }

    /// How long it visibly sleeps, in seconds.
    pub(super) fn visible_seconds(&self) -> Option<f64> {
        match (&self.sleep, &self.exec) {
            (Part::Found(SleepAction { seconds: Part::Found(seconds), .. }), _) => Some(*seconds as f64),
            (_, Part::Found(ExecAction { command: Part::Found(command), .. })) => command.seconds,
            _ => None,
        }
    }
}

impl ExactSleep {
    pub(super) fn seconds(self) -> u64 {
        match self {
            Self::Native(seconds) | Self::Command(seconds) => seconds,
        }
    }
}

impl<'de> Shape<'de> for Handler {
    fn of_map<A: MapAccess<'de>>(mut map: A) -> Result<Part<Self>, A::Error> {
        let mut handler = Self::default();
        while let Some(Key(key)) = map.next_key()? {
            handler.keys += 1;
            let there = match &*key {
                "sleep" => {
                    handler.sleep = map.next_value()?;
                    handler.sleep.found().is_some() || handler.sleep.is_wrong()
                }
                "exec" => {
                    handler.exec = map.next_value()?;
                    handler.exec.found().is_some() || handler.exec.is_wrong()
                }
                _ => map.next_value::<Option<IgnoredAny>>()?.is_some(),
            };
            handler.actions += usize::from(there);
        }
        Ok(Part::Found(handler))
    }
}

impl<'de> Shape<'de> for SleepAction {
    fn of_map<A: MapAccess<'de>>(mut map: A) -> Result<Part<Self>, A::Error> {
        let mut sleep = Self::default();
        while let Some(Key(key)) = map.next_key()? {
            match &*key {
                "seconds" => sleep.seconds = map.next_value()?,
                _ => sleep.others += usize::from(map.next_value::<Option<IgnoredAny>>()?.is_some()),
            }
        }
        Ok(Part::Found(sleep))
    }
}

impl<'de> Shape<'de> for ExecAction {
    fn of_map<A: MapAccess<'de>>(mut map: A) -> Result<Part<Self>, A::Error> {
        let mut exec = Self::default();
        while let Some(Key(key)) = map.next_key()? {
            match &*key {
                "command" => exec.command = map.next_value()?,
                _ => exec.others += usize::from(map.next_value::<Option<IgnoredAny>>()?.is_some()),
            }
        }
        Ok(Part::Found(exec))
    }
}

impl<'de> Shape<'de> for Command {
    fn of_list<A: SeqAccess<'de>>(mut list: A) -> Result<Part<Self>, A::Error> {
        let mut words: Vec<Cow<'de, str>> = Vec::new();
        while let Some(word) = list.next_element::<Part<Cow<'de, str>>>()? {
            let Part::Found(word) = word else {
                while list.next_element::<IgnoredAny>()?.is_some() {}
                return Ok(Part::Wrong);
            };
            words.push(word);
        }
        let words: Vec<&str> = words.iter().map(|word| &**word).collect();
        Ok(Part::Found(Self { seconds: visible_sleep(&words), ours: own_sleep(&words) }))
    }
}

/// The seconds of `["sleep", "N"]`, the one command that we write.
fn own_sleep(words: &[&str]) -> Option<u64> {
    match words {
        ["sleep", number] => number.parse().ok().filter(|seconds: &u64| seconds.to_string() == *number),
        _ => None,
    }
}

/// The seconds of `sleep N`, also in a shell's `-c`, where nothing else happens.
fn visible_sleep(words: &[&str]) -> Option<f64> {
    const SHELLS: [&str; 5] = ["sh", "bash", "ash", "dash", "busybox"];
    let program = |word: &str| word.rsplit('/').next().unwrap_or(word).to_owned();
    match words {
        [sleep, number] if program(sleep) == "sleep" => sleep_length(number),
        [shell, "-c", script] if SHELLS.contains(&&*program(shell)) => {
            let words: Vec<&str> = script.split_whitespace().collect();
            match words[..] {
                [sleep, number] | ["exec", sleep, number] if program(sleep) == "sleep" => sleep_length(number),
                _ => None,
            }
        }
        _ => None,
    }
}

/// A number as `sleep` takes it: with a fraction, and with a unit behind it.
fn sleep_length(text: &str) -> Option<f64> {
    let (number, unit) = match text.as_bytes().last()? {
        b's' => (&text[..text.len() - 1], 1.0),
        b'm' => (&text[..text.len() - 1], 60.0),
        b'h' => (&text[..text.len() - 1], 3600.0),
        b'd' => (&text[..text.len() - 1], 86400.0),
        _ => (text, 1.0),
    };
    let readable = !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    readable.then(|| number.parse::<f64>().ok()).flatten().map(|number| number * unit)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case(&["sleep", "10"], Some(10.0))]
    #[case(&["/bin/sleep", "1.5m"], Some(90.0))]
    #[case(&["sleep", "2h"], Some(7200.0))]
    #[case(&["sleep", "1d"], Some(86_400.0))]
    #[case(&["sh", "-c", "sleep 5"], Some(5.0))]
    #[case(&["/bin/bash", "-c", " exec sleep 5s "], Some(5.0))]
    #[case(&["sh", "-c", "sleep 5; nginx -s quit"], None)]
    #[case(&["sh", "-c", "sleep 5 && true"], None)]
    #[case(&["/bin/wait", "10"], None)]
    #[case(&["perl", "-c", "sleep 10"], None)]
    #[case(&["sh", "-c", "wait 10"], None)]
    #[case(&["sleep", "1", "2"], None)]
    #[case(&["sleep", "inf"], None)]
    #[case(&["sleep", ""], None)]
    #[case(&[], None)]
    fn visible_sleeps(#[case] words: &[&str], #[case] seconds: Option<f64>) {
        assert_eq!(visible_sleep(words), seconds);
    }

    #[rstest]
    #[case(r#"{"sleep":{"seconds":45}}"#, Some(ExactSleep::Native(45)))]
    #[case(r#"{"sleep":{"seconds":45},"exec":null}"#, Some(ExactSleep::Native(45)))]
    #[case(r#"{"exec":{"command":["sleep","45"]}}"#, Some(ExactSleep::Command(45)))]
    #[case(r#"{"exec":{"command":["/bin/sleep","45"]}}"#, None)]
    #[case(r#"{"exec":{"command":["sleep","+45"]}}"#, None)]
    #[case(r#"{"exec":{"command":["sleep","045"]}}"#, None)]
    #[case(r#"{"sleep":{"seconds":45},"future":{}}"#, None)]
    #[case(r#"{"sleep":{"seconds":45,"future":1}}"#, None)]
    #[case(r#"{"exec":{"command":["sleep","45"],"future":1}}"#, None)]
    #[case(r#"{"exec":{"command":["sleep","45"],"future":null}}"#, Some(ExactSleep::Command(45)))]
    #[case(r#"{"sleep":{"seconds":-45}}"#, None)]
    #[case(r#"{"sleep":{"seconds":45.0}}"#, None)]
    #[case(r#"{"sleep":null}"#, None)]
    fn exact_sleeps(#[case] json: &str, #[case] wanted: Option<ExactSleep>) {
        let handler: Part<Handler> = serde_json::from_str(json).unwrap();
        assert_eq!(handler.found().unwrap().exact(), wanted);
    }
}
