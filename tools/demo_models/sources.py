"""The Debian packages the corpus is taken from, and how to read each of them.

Each entry: package, reader name, list of path globs inside the unpacked package, passes.
`passes` is how often the source is repeated in one epoch of training (prose is worth more
than reference text here).
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Source:
    package: str
    reader: str
    globs: tuple[str, ...]
    passes: int = 1
    max_bytes: int = 1 << 40


def _s(package, reader, *globs, passes=1, max_bytes=1 << 40):
    return Source(package, reader, globs, passes, max_bytes)


WESNOTH_CAMPAIGNS = (
    "did dm dw ei httt l low nr sof sota sotbe thot trow tsg ttb utbs".split()
)

SOURCES = [
    # Novels, essays, sermons, scripture.
    _s("r-cran-janeaustenr", "r_strings", "usr/lib/R/site-library/janeaustenr/data/Rdata.rdb", passes=3),
    _s("sword-text-web", "sword", "usr/share/sword/modules/**/*.[bc]zz", passes=1),
    _s("sword-comm-mhcc", "sword", "usr/share/sword/modules/**/*.[bc]zz", passes=2),
    _s("sword-comm-tdavid", "sword", "usr/share/sword/modules/**/*.[bc]zz", passes=2),
    _s("sword-comm-scofield", "sword", "usr/share/sword/modules/**/*.[bc]zz"),
    _s("golang-1.19-src", "plain", "usr/share/go-1.19/src/testdata/*.txt", passes=2),
    _s("anarchism", "html", "usr/share/doc/anarchism/html/*.html", passes=2),
    # Stories and dialogue of games.
    *[
        _s(f"wesnoth-1.16-{c}", "wesnoth", "usr/share/games/wesnoth/**/*.cfg", passes=3)
        for c in WESNOTH_CAMPAIGNS
    ],
    _s("endless-sky-data", "endless_sky", "usr/share/games/endless-sky/data/**/*.txt", passes=3),
    _s("cataclysm-dda-data", "json_strings", "usr/share/**/*.json", passes=1),
    _s("crossfire-maps", "crossfire", "usr/share/games/crossfire/maps/**/*", passes=2),
    _s("crawl-common", "crawl", "usr/share/crawl/dat/descript/*.txt", "usr/share/crawl/dat/database/*.txt", passes=1),
    # Dictionaries and collections.
    _s("dict-devil", "dictd", "usr/share/dictd/*.dict.dz", passes=2),
    _s("dict-jargon", "dictd", "usr/share/dictd/*.dict.dz", passes=1),
    _s("dict-foldoc", "dictd", "usr/share/dictd/*.dict.dz"),
    _s("dict-gcide", "dictd", "usr/share/dictd/*.dict.dz", max_bytes=8_000_000),
    _s("dict-wn", "dictd", "usr/share/dictd/*.dict.dz", max_bytes=5_000_000),
    _s("fortunes", "fortunes", "usr/share/games/fortunes/*"),
    # Histories, handbooks, guides.
    _s("debian-handbook", "html", "usr/share/doc/debian-handbook/html/en-US/*.html", passes=2),
    _s("debian-history", "html", "usr/share/doc/debian-history/docs/*.en.html", "usr/share/doc/debian-history/docs/index.html"),
    _s("debian-policy", "html", "usr/share/doc/debian-policy/**/*.html"),
    _s("debian-faq", "html", "usr/share/doc/debian/FAQ/*.html", passes=2),
    _s("debian-reference-en", "html", "usr/share/debian-reference/*.en.html"),
    _s("developers-reference", "html", "usr/share/developers-reference/*.html", "usr/share/doc/developers-reference/*.html"),
    _s("maint-guide", "html", "usr/share/doc/maint-guide/html/*.html"),
    _s("harden-doc", "html", "usr/share/doc/harden-doc/**/*.en.html", "usr/share/doc/harden-doc/html/**/*.html"),
    _s("debian-edu-doc-en", "html", "usr/share/doc/debian-edu-doc-en/*.html"),
    _s("installation-guide-amd64", "html", "usr/share/doc/installation-guide-amd64/en/*.html"),
    _s("gnome-user-docs", "mallard", "usr/share/help/C/**/*.page", passes=2),
    _s("gimp-help-en", "html", "usr/share/gimp/2.0/help/en/*.html"),
    _s("libreoffice-help-en-us", "html", "usr/share/libreoffice/help/en-US/text/**/*.html"),
    _s("png-definitive-guide", "html", "usr/share/doc/png-definitive-guide/**/*.html"),
    _s("rust-doc", "html", *[f"usr/share/doc/rust-doc/html/{b}/**/*.html" for b in ("book", "reference", "nomicon", "rust-by-example", "cargo", "rustc", "embedded-book", "edition-guide", "rustdoc")]),
    _s("python3.11-doc", "html", *[f"usr/share/doc/python3.11/html/{d}/*.html" for d in ("tutorial", "howto", "library", "reference", "faq", "extending", "whatsnew", "using", "c-api", "installing", "distutils")]),
    _s("perl-doc", "pod", "usr/share/perl/**/*.pod"),
    _s("git-doc", "html", "usr/share/doc/git/html/*.html"),
    _s("postgresql-doc-15", "html", "usr/share/doc/postgresql-doc-15/html/*.html"),
    _s("linux-doc-6.1", "html", "usr/share/doc/linux-doc-6.1/html/**/*.html"),
    _s("shorewall-doc", "html", "usr/share/doc/shorewall-doc/html/*.html"),
    _s("python-django-doc", "html", "usr/share/doc/python-django-doc/html/**/*.html"),
    _s("racket-doc", "html", *[f"usr/share/doc/racket/{b}/**/*.html" for b in ("guide", "quick", "more", "reference", "plait", "drracket", "scribble", "style", "continue", "macros", "algol60")]),
    _s("ghc-doc", "html", "usr/share/doc/ghc-doc/html/users_guide/**/*.html"),
    _s("erlang-doc", "html", "usr/share/doc/erlang-doc/**/*.html"),
    _s("r-doc-html", "html", "usr/share/R/doc/manual/*.html", "usr/share/doc/r-doc-html/**/*.html"),
    _s("lilypond-doc-html", "html", "usr/share/doc/lilypond/html/**/*.html"),
    _s("zsh-doc", "html", "usr/share/doc/zsh-doc/**/*.html"),
    _s("manpages", "roff", "usr/share/man/man*/*.gz"),
    _s("manpages-dev", "roff", "usr/share/man/man*/*.gz"),
]
