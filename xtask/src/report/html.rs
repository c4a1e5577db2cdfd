//! Text as HTML: everything that comes from a file or from a result goes through [`text`] or [`attribute`].

/// As text of an element.
pub fn text(words: &str) -> String {
    words.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// As the value of an attribute in double quotes.
pub fn attribute(words: &str) -> String {
    text(words).replace('"', "&quot;").replace('\'', "&#39;")
}

/// As text, with what stands between backquotes as code.
pub fn prose(words: &str) -> String {
    let part = |(at, part): (usize, &str)| match at % 2 {
        1 => format!("<code>{}</code>", text(part)),
        _ => text(part),
    };
    words.split('`').enumerate().map(part).collect()
}

/// A link's target that holds a file of its own.
pub fn data_link(media: &str, content: &str) -> String {
    let mut out = format!("data:{media};charset=utf-8,");
    for byte in content.bytes() {
        match byte {
            b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' | b',' | b'.' | b'-' | b'_' | b':' | b'/' | b'=' => {
                out.push(char::from(byte));
            }
            other => out += &format!("%{other:02X}"),
        }
    }
    out
}

/// A table whose columns the script sorts; it scrolls in a box of its own. `cells` are HTML already.
pub fn table(titles: &[String], rows: &[Vec<String>]) -> String {
    let row = |cells: &Vec<String>| {
        let cells: String = cells.iter().map(|cell| format!("<td>{cell}</td>")).collect();
        format!("<tr>{cells}</tr>\n")
    };
    table_of("sortable", titles, &rows.iter().map(row).collect::<String>())
}

/// A table of a class of its own, whose `rows` are HTML already.
pub fn table_of(class: &str, titles: &[impl AsRef<str>], rows: &str) -> String {
    let head: String =
        titles.iter().map(|title| format!("<th scope=\"col\">{}</th>", title.as_ref())).collect();
    format!(
        "<div class=\"wide\" tabindex=\"0\"><table class=\"{class}\"><thead><tr>{head}</tr></thead>\n<tbody>\n{rows}</tbody></table></div>\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_means_something_in_html_is_escaped() {
        assert_eq!(text("a<b> & \"c\""), "a&lt;b&gt; &amp; \"c\"");
        assert_eq!(attribute("\"'<"), "&quot;&#39;&lt;");
        assert_eq!(prose("run `a < b` now"), "run <code>a &lt; b</code> now");
        assert_eq!(data_link("text/csv", "a,\"<\n%"), "data:text/csv;charset=utf-8,a,%22%3C%0A%25");
    }
}
