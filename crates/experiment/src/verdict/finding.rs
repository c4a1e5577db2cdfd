//! What a rule finds in points.

/// How the evidence of a thing without points ends.
const NO_POINTS: &str = ": no points to judge it by";

/// One thing that a claim is about.
pub struct Finding {
    pub holds: Option<bool>,
    pub evidence: String,
    /// Parts that must be hardware for it, where it could not be judged.
    pub needs: Vec<String>,
}

impl Finding {
    pub fn line(self) -> String {
        let mark = match self.holds {
            Some(true) => "holds: ",
            Some(false) => "fails: ",
            None => "",
        };
        format!("{mark}{}", self.evidence)
    }

    /// Whether there was nothing to look at.
    pub fn is_missing(&self) -> bool {
        self.holds.is_none() && (!self.needs.is_empty() || self.evidence.ends_with(NO_POINTS))
    }

    pub fn judged(holds: bool, evidence: String) -> Finding {
        Finding { holds: Some(holds), evidence, needs: Vec::new() }
    }

    pub fn missing(what: &str, needs: Vec<String>) -> Finding {
        let evidence = match needs.is_empty() {
            true => format!("{what}{NO_POINTS}"),
            false => format!("{what}: needs hardware ({})", needs.join(", ")),
        };
        Finding { holds: None, evidence, needs }
    }
}
