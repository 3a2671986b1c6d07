//! Holds `docs/registry-http.openapi.yaml` against the server: every path, method and status of the file is exercised, every route of the
//! server is in the file, and every body, asked and answered, has the shape that the file says.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use lockstep::commands::registry::{Limits, Route};
use reqwest::{Client, Method};
use serde_json::{Value, json};

use crate::registry_ground::{Inside, Outside};

/// Path of the file, method, status.
type Case = (String, String, u16);

#[test]
fn the_file_has_the_routes_of_the_server() {
    let server: BTreeSet<_> = Route::ALL.iter().map(|route| (route.path().to_owned(), route.method().as_str().to_lowercase())).collect();
    assert_eq!(server.len(), Route::ALL.len());
    let file: BTreeSet<_> = cases(&contract()).into_iter().map(|(path, method, _)| (path, method)).collect();
    assert_eq!(server, file);
}

#[tokio::test]
async fn every_answer_of_the_file_is_given() {
    let contract = contract();
    let folder = tempfile::tempdir().unwrap();
    let token = folder.path().join("token");
    std::fs::write(&token, "secret").unwrap();
    let limits = Limits { body_time: Duration::from_millis(50), ..Limits::default() };
    let with_token = ["--token-file", token.to_str().unwrap()];
    let server = Inside::start_with(&folder.path().join("store"), &with_token, limits).await;
    let mut caller = Caller { contract: &contract, url: server.url.clone(), token: "secret", seen: BTreeSet::new() };
    ordinary(&mut caller).await;
    bad_bodies(&mut caller).await;
    bad_names(&mut caller).await;
    full(&mut caller).await;
    caller.token = "another";
    everywhere(&mut caller, 401).await;
    std::fs::remove_file(&token).unwrap();
    everywhere(&mut caller, 503).await;

    let strict = Inside::start(&folder.path().join("strict"), &["--require-services"]).await;
    caller.url.clone_from(&strict.url);
    caller.ask("get", "/v1/services/web/targets", None, 404).await;
    caller.ask("get", "/v1/services/web", None, 404).await;
    caller.ask("post", "/v1/services/web/changes", Some(json!({"changes": []})), 404).await;

    let small = Outside::start_on_small_disk(&folder.path().join("small"), 4096);
    caller.url.clone_from(&small.url);
    fill_disk(&caller).await;
    caller.ask("get", "/livez", None, 503).await;
    caller.ask("get", "/readyz", None, 503).await;

    let wanted = cases(&contract);
    let missing: Vec<_> = wanted.difference(&caller.seen).collect();
    assert!(missing.is_empty(), "in the file, but never seen: {missing:?}");
}

/// What a caller does in a day.
async fn ordinary(caller: &mut Caller<'_>) {
    let target = "/v1/services/shop%2Fweb/targets/10.0.0.1:80/u";
    let active = || Some(json!({"state": "active", "cluster": "c", "pod": {"namespace": "shop", "name": "web-1"}, "weight": 50}));
    caller.ask("get", "/livez", None, 200).await;
    caller.ask("get", "/readyz", None, 200).await;
    caller.ask("put", "/v1/services/shop%2Fweb", Some(json!({"drainDelay": "30s"})), 201).await;
    caller.ask("put", "/v1/services/shop%2Fweb", Some(json!({"drainDelay": "1m30s"})), 200).await;
    let service = caller.ask("get", "/v1/services/shop%2Fweb", None, 200).await;
    assert_eq!((&service["service"], &service["drainDelay"]), (&json!("shop/web"), &json!("1m30s")));
    caller.ask("put", target, active(), 201).await;
    caller.ask("put", target, active(), 200).await;
    caller.ask("put", target, Some(json!({"state": "draining", "cluster": "other"})), 409).await;
    caller.ask("put", "/v1/services/web/targets/[fd00::1]:80/u", Some(json!({"state": "draining"})), 404).await;
    caller.ask("delete", "/v1/services/shop%2Fweb", None, 409).await;
    let list = caller.ask("get", "/v1/services/shop%2Fweb/targets", None, 200).await;
    assert_eq!(list["targets"][0]["pod"]["name"], "web-1");
    caller.ask("get", "/v1/services/web/targets?wait=1s", None, 400).await;
    caller.ask("get", "/v1/services/web/targets?index=1&wait=soon", None, 400).await;
    caller.ask("get", "/v1/services/web/targets?indx=1", None, 400).await;
    for (word, status) in [("denied", 403), ("throttled", 429), ("unavailable", 503)] {
        caller.ask("put", "/v1/services/shop%2Fweb/behaviour", Some(json!({"refuse": word})), 200).await;
        caller.ask("put", target, active(), status).await;
        caller.ask("delete", target, None, status).await;
    }
    caller.ask("get", "/v1/services/shop%2Fweb/behaviour", None, 200).await;
    caller.ask("delete", "/v1/services/shop%2Fweb/behaviour", None, 200).await;
    caller.ask("put", "/v1/behaviour", Some(json!({"registerDelay": "0s", "hold": false})), 200).await;
    caller.ask("get", "/v1/behaviour", None, 200).await;
    let change = |operation| json!({"operation": operation, "address": "10.0.0.2:80", "uid": "v", "cluster": "c"});
    let changes = json!({"changes": [change("register"), change("drain"), change("deregister"), change("deregister")]});
    let results = caller.ask("post", "/v1/services/shop%2Fweb/changes", Some(changes), 200).await;
    let statuses: Vec<_> = results["results"].as_array().unwrap().iter().map(|result| result["status"].as_u64().unwrap()).collect();
    assert_eq!(statuses, [201, 200, 200, 404]);
    caller.ask("delete", target, None, 200).await;
    caller.ask("delete", target, None, 404).await;
    caller.ask("get", "/v1/services", None, 200).await;
    caller.ask("get", "/v1/backup", None, 200).await;
    caller.ask("delete", "/v1/services/shop%2Fweb", None, 204).await;
    caller.ask("delete", "/v1/services/shop%2Fweb", None, 404).await;
}

/// Bodies that are no JSON, not as described, too long, too slow.
async fn bad_bodies(caller: &mut Caller<'_>) {
    for route in Route::ALL.into_iter().filter(|route| matches!(route.method(), Method::PUT | Method::POST)) {
        let method = route.method().as_str().to_lowercase();
        let path = filled(route.path());
        for body in ["", "{", r#"{"surprise":1}"#] {
            caller.send(&method, &path, Body::Text(body, "application/json"), 400).await;
        }
        caller.send(&method, &path, Body::Text("{}", "text/plain"), 415).await;
        caller.send(&method, &path, Body::Text(&" ".repeat(300_000), "application/json"), 413).await;
        caller.send(&method, &path, Body::Never, 408).await;
    }
    let change = json!({"operation": "register", "address": "10.0.0.2:80", "uid": "v"});
    caller.ask("post", "/v1/services/web/changes", Some(json!({"changes": vec![change; 101]})), 413).await;
    let nameless = json!({"operation": "register", "address": "10.0.0.2:80", "uid": ""});
    caller.ask("post", "/v1/services/web/changes", Some(json!({"changes": [nameless]})), 400).await;
}

/// Names that cannot be.
async fn bad_names(caller: &mut Caller<'_>) {
    for route in Route::ALL.into_iter().filter(|route| route.path().contains('{')) {
        let method = route.method().as_str().to_lowercase();
        let body = if matches!(route.method(), Method::PUT | Method::POST) { Body::Text("{}", "application/json") } else { Body::None };
        for name in ["a%00b", "%FF", &"x".repeat(300)] {
            caller.send(&method, &filled(route.path()).replacen("web", name, 1), body, 400).await;
        }
    }
    caller.ask("delete", "/v1/services/web/targets/10.0.0.1/u", None, 400).await;
    caller.ask("delete", "/v1/services/web/targets/host:80/u", None, 400).await;
}

/// More services and targets than there may be.
async fn full(caller: &mut Caller<'_>) {
    for batch in 0..50 {
        let change = |number| json!({"operation": "register", "address": "10.0.0.1:80", "uid": format!("{batch}-{number}")});
        let changes: Vec<_> = (0..100).map(change).collect();
        caller.ask("post", "/v1/services/web/changes", Some(json!({"changes": changes})), 200).await;
    }
    let refusal = caller.ask("put", "/v1/services/web/targets/10.0.0.1:80/one-more", Some(json!({"state": "active"})), 409).await;
    assert_eq!(refusal["reason"], "ServiceFull");
    let made = Client::builder().no_proxy().build().unwrap();
    for number in 0..999 {
        let url = format!("{}/v1/services/s{number}", caller.url);
        made.put(url).bearer_auth(caller.token).json(&json!({})).send().await.unwrap();
    }
    let refusal = caller.ask("put", "/v1/services/one-more", Some(json!({})), 409).await;
    assert_eq!(refusal["reason"], "TooManyServices");
    caller.ask("put", "/v1/services/one-more/behaviour", Some(json!({})), 409).await;
    caller.ask("put", "/v1/services/one-more/targets/10.0.0.1:80/u", Some(json!({"state": "active"})), 409).await;
}

/// Every route that asks for a token.
async fn everywhere(caller: &mut Caller<'_>, status: u16) {
    for route in Route::ALL.into_iter().filter(|route| route.path().starts_with("/v1")) {
        let method = route.method().as_str().to_lowercase();
        caller.send(&method, &filled(route.path()), Body::None, status).await;
    }
}

async fn fill_disk(caller: &Caller<'_>) {
    let client = Client::builder().no_proxy().build().unwrap();
    for batch in 0..1000 {
        let change =
            |number| json!({"operation": "register", "address": "10.0.0.1:80", "uid": format!("{batch}-{number}-{}", "x".repeat(200))});
        let changes: Vec<_> = (0..100).map(change).collect();
        let url = format!("{}/v1/services/s{}/changes", caller.url, batch / 10);
        if client.post(url).json(&json!({"changes": changes})).send().await.unwrap().status() == 503 {
            return;
        }
    }
    panic!("the disk is never full");
}

/// Sends requests and holds the answers against the file.
struct Caller<'c> {
    contract: &'c Value,
    url: String,
    token: &'static str,
    seen: BTreeSet<Case>,
}

#[derive(Clone, Copy)]
enum Body<'b> {
    None,
    Text(&'b str, &'static str),
    /// Announced, and never sent.
    Never,
}

impl Caller<'_> {
    /// A request whose body, too, must be as the file says.
    async fn ask(&mut self, method: &str, path: &str, body: Option<Value>, status: u16) -> Value {
        let Some(body) = body else { return self.send(method, path, Body::None, status).await };
        let operation = &self.contract["paths"][template(path)][method];
        if status < 300 {
            let schema = &operation["requestBody"]["content"]["application/json"]["schema"];
            self.holds(schema, &body, &format!("request {method} {path}"));
        }
        self.send(method, path, Body::Text(&body.to_string(), "application/json"), status).await
    }

    async fn send(&mut self, method: &str, path: &str, body: Body<'_>, status: u16) -> Value {
        let client = Client::builder().no_proxy().build().unwrap();
        let verb = Method::from_bytes(method.to_uppercase().as_bytes()).unwrap();
        let request = client.request(verb, format!("{}{path}", self.url)).bearer_auth(self.token);
        let (given, kind, text) = match body {
            Body::Never => return self.never_ending(method, path, status).await,
            Body::None => request.send().await,
            Body::Text(text, kind) => request.header("Content-Type", kind).body(text.to_owned()).send().await,
        }
        .map(|answer| (answer.status().as_u16(), answer.headers().get("content-type").cloned(), answer))
        .unwrap();
        let text = text.text().await.unwrap();
        let place = format!("{method} {path} answered {given}: {text}");
        assert_eq!(given, status, "{place}");
        self.check(method, path, given, kind.as_ref().map_or("", |kind| kind.to_str().unwrap()), &text, &place)
    }

    /// Announces a body that never comes.
    async fn never_ending(&mut self, method: &str, path: &str, status: u16) -> Value {
        let address = self.url.trim_start_matches("http://").to_owned();
        let head = format!(
            "{} {path} HTTP/1.1\r\nHost: r\r\nAuthorization: Bearer {}\r\nContent-Type: application/json\r\nContent-Length: 9\r\nConnection: close\r\n\r\n",
            method.to_uppercase(),
            self.token
        );
        let answer = tokio::task::spawn_blocking(move || {
            use std::io::{Read, Write};
            let mut stream = std::net::TcpStream::connect(address).unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            stream.write_all(head.as_bytes()).unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            answer
        })
        .await
        .unwrap();
        let (head, text) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{method} {path}: {head}");
        self.check(method, path, status, "application/json", text, &format!("{method} {path} answered {text}"))
    }

    fn check(&mut self, method: &str, path: &str, status: u16, kind: &str, text: &str, place: &str) -> Value {
        let template = template(path);
        let answer = self.resolve(&self.contract["paths"][&template][method]["responses"][status.to_string()]).clone();
        assert!(!answer.is_null(), "the file does not know that {place}");
        self.seen.insert((template, method.to_owned(), status));
        let Some(content) = answer.get("content") else {
            assert_eq!(text, "", "{place}");
            return Value::Null;
        };
        let (expected, content) = content.as_object().unwrap().iter().next().unwrap();
        assert!(kind.starts_with(expected), "{kind} is not {expected}: {place}");
        let value = if expected == "application/json" { serde_json::from_str(text).unwrap() } else { json!(text) };
        self.holds(&content["schema"], &value, place);
        value
    }

    fn resolve<'v>(&'v self, value: &'v Value) -> &'v Value {
        match value.get("$ref") {
            Some(reference) => {
                self.contract.pointer(reference.as_str().unwrap().trim_start_matches('#')).expect("a reference leads somewhere")
            }
            None => value,
        }
    }

    /// The part of JSON Schema that the file uses; anything else in it is a mistake of the file.
    fn holds(&self, schema: &Value, value: &Value, place: &str) {
        let schema = self.resolve(schema).as_object().unwrap_or_else(|| panic!("no schema: {place}"));
        for (word, wanted) in schema {
            let good = match word.as_str() {
                "type" => match wanted.as_str().unwrap() {
                    "object" => value.is_object(),
                    "array" => value.is_array(),
                    "string" => value.is_string(),
                    "integer" => value.is_u64(),
                    "boolean" => value.is_boolean(),
                    other => panic!("{other}"),
                },
                "enum" => wanted.as_array().unwrap().contains(value),
                "required" => wanted.as_array().unwrap().iter().all(|name| value.get(name.as_str().unwrap()).is_some()),
                "additionalProperties" => value.as_object().unwrap().keys().all(|name| schema["properties"].get(name).is_some()),
                "minimum" => value.as_u64() >= wanted.as_u64(),
                "maximum" => value.as_u64() <= wanted.as_u64(),
                "minLength" => value.as_str().unwrap().len() as u64 >= wanted.as_u64().unwrap(),
                "maxLength" => value.as_str().unwrap().len() as u64 <= wanted.as_u64().unwrap(),
                "maxItems" => value.as_array().unwrap().len() as u64 <= wanted.as_u64().unwrap(),
                "properties" | "items" | "description" | "examples" | "default" => true,
                other => panic!("the test does not know {other}: {place}"),
            };
            assert!(good, "{word} {wanted} does not hold for {value}: {place}");
        }
        for (name, part) in value.as_object().into_iter().flatten() {
            self.holds(&schema["properties"][name], part, &format!("{place} .{name}"));
        }
        for part in value.as_array().into_iter().flatten() {
            self.holds(&schema["items"], part, &format!("{place} []"));
        }
    }
}

fn contract() -> Value {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/registry-http.openapi.yaml");
    serde_saphyr::from_str(&std::fs::read_to_string(file).unwrap()).unwrap()
}

fn cases(contract: &Value) -> BTreeSet<Case> {
    let mut cases = BTreeSet::new();
    for (path, item) in contract["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap().iter().filter(|(word, _)| *word != "parameters") {
            for status in operation["responses"].as_object().unwrap().keys() {
                cases.insert((path.clone(), method.clone(), status.parse().unwrap()));
            }
        }
    }
    cases
}

/// A real path for one of the file.
fn filled(template: &str) -> String {
    template.replace("{service}", "web").replace("{address}", "10.0.0.1:80").replace("{uid}", "u")
}

/// The path of the file that a real path belongs to.
fn template(path: &str) -> String {
    let path = path.split('?').next().unwrap();
    let fits = |route: &Route| {
        let (one, other): (Vec<_>, Vec<_>) = (route.path().split('/').collect(), path.split('/').collect());
        one.len() == other.len() && one.iter().zip(other).all(|(one, other)| one.starts_with('{') || *one == other)
    };
    Route::ALL.into_iter().find(fits).unwrap_or_else(|| panic!("{path} is no path of the server")).path().to_owned()
}
