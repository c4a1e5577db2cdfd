//! What a NIC can be asked: one line of words, parsed into a value before anything is done.

/// A request.
#[derive(Debug, Clone, PartialEq)]
pub enum Request {
    /// Devices, their ports and how many QPs they have.
    Status,
    /// Every counter, by the names of the stats line.
    Counters,
}

impl Request {
    /// Parses a line. The error is a sentence.
    pub fn parse(line: &str) -> Result<Request, String> {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        match words[..] {
            ["status"] => Ok(Request::Status),
            ["counters"] => Ok(Request::Counters),
            _ => Err(format!("{:?} is nothing that this NIC can be asked", shown(line))),
        }
    }
}

impl std::fmt::Display for Request {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Request::Status => f.write_str("status"),
            Request::Counters => f.write_str("counters"),
        }
    }
}

/// The beginning of what came, for a message about it.
fn shown(line: &str) -> String {
    line.chars().take(60).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_what_is_read() {
        for request in [Request::Status, Request::Counters] {
            assert_eq!(Request::parse(&request.to_string()), Ok(request));
        }
    }

    #[test]
    fn anything_else_is_refused_in_one_short_line() {
        for line in ["", " ", "status now", "counters\nstatus", "Status", &"x".repeat(1000), "\0"] {
            let error = Request::parse(line).unwrap_err();
            assert!(error.len() < 400 && !error.contains('\n'), "{error}");
        }
    }
}
