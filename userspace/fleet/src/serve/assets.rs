//! Embedded files of the page.

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const JS: &str = "text/javascript; charset=utf-8";

const FILES: [(&str, &str, &str); 14] = [
    ("/", HTML, include_str!("../../page/index.html")),
    ("/page.css", CSS, include_str!("../../page/page.css")),
    ("/page.js", JS, include_str!("../../page/page.js")),
    ("/dom.js", JS, include_str!("../../page/dom.js")),
    ("/chart.js", JS, include_str!("../../page/chart.js")),
    ("/overview.js", JS, include_str!("../../page/overview.js")),
    ("/figures.js", JS, include_str!("../../page/figures.js")),
    ("/fleet.js", JS, include_str!("../../page/fleet.js")),
    ("/interface.js", JS, include_str!("../../page/interface.js")),
    ("/parameters.js", JS, include_str!("../../page/parameters.js")),
    ("/icon.svg", "image/svg+xml", include_str!("../../page/icon.svg")),
    ("/uplot.js", JS, include_str!(concat!(env!("OUT_DIR"), "/uplot.js"))),
    ("/uplot.css", CSS, include_str!(concat!(env!("OUT_DIR"), "/uplot.css"))),
    // The licence requires that copies of uPlot include it.
    ("/uplot.license", "text/plain; charset=utf-8", include_str!(concat!(env!("OUT_DIR"), "/uplot.license"))),
];

pub(super) fn router<S: Clone + Send + Sync + 'static>() -> Router<S> {
    let add = |router: Router<S>, (path, kind, text): (&'static str, &'static str, &'static str)| {
        router.route(path, get(move || async move { ([(header::CONTENT_TYPE, kind)], text).into_response() }))
    };
    FILES.into_iter().fold(Router::new(), add)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_has_no_remote_or_inline_code() {
        let own = FILES.iter().filter(|(path, ..)| !path.starts_with("/uplot"));
        for (path, _, text) in own {
            for word in
                ["https:", "innerHTML", "insertAdjacentHTML", "eval(", " style=", "onclick=", "<style"]
            {
                assert!(!text.contains(word), "{path} has {word}");
            }
            // The SVG namespace is not fetched.
            let text = text.replace("http://www.w3.org/2000/svg", "");
            assert!(!text.contains("http:"), "{path}");
        }
        let (_, _, html) = FILES[0];
        for script in html.split("<script").skip(1) {
            assert!(script.starts_with(" src=\"/") && script.contains("></script>"), "{script}");
        }
    }
}
