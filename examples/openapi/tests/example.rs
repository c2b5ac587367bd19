//! Runs the example, and compares what it documents with what it answers.

#[path = "../../../tests/servers/process.rs"]
mod process;

use std::collections::BTreeSet;

use serde_json::Value;

use self::process::{Process, listening, request};

/// Returns the part of a document at a place, through references.
fn at<'a>(document: &'a Value, part: &'a Value, path: &[&str]) -> &'a Value {
    let mut part = part;
    for name in path {
        part = &part[name];
        if let Some(reference) = part["$ref"].as_str() {
            part = document.pointer(reference.trim_start_matches('#')).unwrap_or_else(|| panic!("{reference}"));
        }
    }
    part
}

#[test]
fn openapi_example_documents_what_it_answers() {
    let server = Process::start(&mut listening(env!("CARGO_BIN_EXE_example-openapi")));
    let address = server.address();
    let answers = |path: &str, method: &str| {
        let answer = request(address, method, path, "");
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{answer}"));
        (head.to_owned(), body.to_owned())
    };
    assert!(answers("/orders", "POST").0.starts_with("HTTP/1.1 200"));
    let (head, body) = answers("/orders", "POST");
    assert!(head.starts_with("HTTP/1.1 429"), "{head}");
    let body: Value = serde_json::from_str(&body).expect("a problem");
    // What each response of the server has.
    let general = ["connection", "content-length", "content-type", "date"];
    let fields: BTreeSet<_> = head.lines().skip(1).filter_map(|line| line.split(':').next()).collect();
    let fields: BTreeSet<_> = fields.into_iter().filter(|name| !general.contains(name)).collect();
    assert!(head.contains("content-type: application/problem+json"), "{head}");

    for path in ["/utoipa.json", "/aide.json"] {
        let document: Value = serde_json::from_str(&answers(path, "GET").1).expect("a document");
        let responses = at(&document, &document, &["paths", "/orders", "post", "responses"]);
        for status in ["200", "400", "429", "503"] {
            assert!(responses[status]["description"].is_string(), "{path}: {status} in {responses:#}");
        }
        let headers = at(&document, responses, &["429", "headers"]).as_object().expect("headers");
        assert_eq!(headers.keys().map(String::as_str).collect::<BTreeSet<_>>(), fields, "{path}");
        for status in ["400", "429", "503"] {
            let schema = at(&document, responses, &[status, "content", "application/problem+json", "schema"]);
            let properties = schema["properties"].as_object().unwrap_or_else(|| panic!("{path}: {schema:#}"));
            for (name, value) in body.as_object().expect("an object") {
                let kind = properties.get(name).unwrap_or_else(|| panic!("{path} lacks {name}"))["type"].to_string();
                let expected = match value {
                    Value::Number(_) => "integer",
                    Value::Array(_) => "array",
                    _ => "string",
                };
                assert!(kind.contains(expected), "{path}: {name} is {kind}");
            }
            let required: Vec<_> = schema["required"].as_array().expect("a list").iter().map(Value::as_str).collect();
            assert_eq!(required.len(), 3, "{path}: {required:?}");
        }
    }
}
