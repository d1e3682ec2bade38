"""Small templates for make_chat_goldens.py: the constructs of Jinja one by one."""

VARIABLES = {
    "s": "Hello World",
    "u": "Größe ß ﬁ ΑΣ İx 日本語 🇨🇭",
    "blank": " \t\n x \u00a0\u3000",
    "n": 7,
    "neg": -7,
    "f": 2.5,
    "big": 12345678901234567890,
    "t": True,
    "none": None,
    "empty": "",
    "l": [3, 1, 2],
    "words": ["banana", "Apple", "cherry", "apple"],
    "d": {"b": 1, "A": 2, "c": None, "items": "shadow", "ünï": [1.0, 1e22, -0.0]},
    "rows": [{"k": "x", "v": 2, "in": {"y": 1}}, {"k": "Y", "v": 1}, {"k": "x", "v": 3, "in": {"y": 0}}],
    "tree": [{"n": "a", "c": [{"n": "b", "c": []}, {"n": "c", "c": [{"n": "d", "c": []}]}]}, {"n": "e", "c": []}],
    "html": "<a href='x'>\"&\"</a>",
    "lines": "one\n\n  two\nthree\n",
}


def printed(*expressions):
    return ["{{ " + expression + " }}" for expression in expressions]


LITERALS = printed(
    "1", "1_000", "0x1F", "0b101", "0o17", "1.5", "1e3", "1.5e-7", "1_0.2_5", "1e16", "123456789012345680.0",
    "0.1 + 0.2", "-0.0", "true", "True", "false", "none", "None", "'a' \"b\" 'c'", "'\\n\\t\\x41\\u00e9\\U0001F600\\'\\q'", "'\\101\\0'",
    "'it''s'", "[1, 'a', none, true, 1.0]", "[1, 2,]", "()", "(1,)", "1, 2", "(1, (2, 3))", "{}", "{'a': 1, 2: 'b', }", "{'a': {'b': {'c': 1}}}",
    "['\\n', \"'\", '\"', '\\'\"', '\\u200b', '\\\\', 'é', '\\x7f']", "{1: 'a', 1.0: 'b', true: 'c'}", "big", "[big]", "big|tojson", "[0.1, 1e-5, 0.0001, 1e22, 1e15]",
    "1 if t", "1 if not t", "[1 if not t]", "1 if n > 9 else 2 if n > 5 else 3", "undefined_name", "[undefined_name]", "undefined_name.x", "undefined_name['x']", "'\\N{DASH}'",
)
ARITHMETIC = printed(
    "1 + 2 * 3", "(1 + 2) * 3", "7 / 2", "4 / 2", "7 // 2", "neg // 2", "7 % 3", "neg % 3", "7 % -3", "neg // -2", "7.5 // 2", "-7.5 % 2", "2 ** 10", "2 ** -1", "2 ** 3 ** 2", "-2 ** 2",
    "2 ** 0.5", "1 / 0", "1 // 0", "1 % 0", "1.0 / 0", "t + 1", "t + t", "-t", "+n", "- n", "--n", "1 - -1", "n - 1", "n-1", "f * 2", "n * f", "'a' + 'b'", "'a' + 1", "1 + 'a'", "'ab' * 3", "3 * 'ab'", "'a' * -1",
    "[1] * 3", "[1] + [2]", "(1,) + (2,)", "[1] + (2,)", "'a' ~ 1 ~ none ~ true ~ 1.0", "1 ~ 2 + 3", "1 + 2 ~ 3", "none + 1", "undefined_name + 1", "undefined_name ~ 'x'", "-undefined_name", "-'a'", "9223372036854775807 + 0", "1e308 * 10",
    "1.5.x", "7 - 2 - 1", "8 // 2 // 2", "2 * 3 % 4",
)
COMPARISON = printed(
    "1 == 1.0", "1 == true", "1 == '1'", "'a' < 'b'", "'Z' < 'a'", "'ß' > 'z'", "1 < 2 < 3", "1 < 3 < 2", "1 < 'a'", "none < 1", "none == none", "[1, 2] < [1, 3]", "[1] < [1, 0]", "(1, 2) == [1, 2]", "[1, 2] == [1, 2.0]", "{'a': 1} == {'a': 1.0}",
    "{'a': 1, 'b': 2} == {'b': 2, 'a': 1}", "undefined_name == undefined_other", "undefined_name == none", "undefined_name != ''", "undefined_name < 1", "1 in l", "5 not in l", "'ell' in s", "'' in s", "1 in s", "'b' in d", "1 in d", "1 in undefined_name",
    "undefined_name in l", "undefined_name in s", "1 in 5", "not 1 in l", "not t", "not (t and none)", "1 and 2", "0 and 2", "0 or 'x'", "none or empty", "empty or undefined_name or 'z'", "[] or {} or ()", "1 > 2 or 3 > 2 and 1 > 0", "not not 1", "t is true", "n is number",
    "1 == 1 == 1", "l == l | sort", "[1] in [[1]]", "'x' in ('x', 'y')", "2 in range(3)", "n >= 7 and n <= 7", "n != 7",
)
ACCESS = printed(
    "s[0]", "s[-1]", "s[99]", "s[1:3]", "s[::-1]", "s[-3:]", "s[:-3]", "s[::2]", "s[8:2:-2]", "u[0:3]", "u[-2:]", "u[2]", "u[::-3]", "s[::0]", "s['x']", "l[0]", "l[-1]", "l[3]", "l[1:]", "l[::-1]", "l[5:]", "l[-99:2]", "l['x']", "l.0", "l.5",
    "d.b", "d['b']", "d['items']", "d.zzz", "d['zzz']", "d.zzz.y", "d.get('b')", "d.get('z')", "d.get('z', 5)", "d.get()", "d.keys()", "d.values()", "d.items()", "d.keys() | list", "d.copy() == d", "d.pop('b')", "d.update({})", "d.pop is defined",
    "l.append(1)", "l.sort", "l.count(1)", "l.index(2)", "l.index(9)", "(1, 2).index(2)", "none.x", "none['x']", "n.x", "n[0]", "rows[0].in.y", "rows[1].in.y", "rows[0]['in']['y']", "rows[0, 1]", "d[[1]]", "{(1, 2): 3}[1, 2]", "{[1]: 2}", "s.__class__", "''.__class__.__mro__", "l[none:2]", "l['a':2]", "l[1:2:3]", "range(3)[0]", "d['b', ]",
)
STRING_METHODS = printed(
    "blank.strip()", "blank.lstrip()", "blank.rstrip()", "'xxaxx'.strip('x')", "'xyaxy'.lstrip('yx')", "'a\\n\\n'.rstrip('\\n')", "s.strip(none)", "s.strip(1)", "s.split()", "s.split('o')", "s.split('o', 1)", "s.rsplit('o', 1)", "' a  b '.split()", "' a  b  c '.split(none, 1)", "' a  b  c '.rsplit(none, 1)",
    "''.split()", "''.split(',')", "s.split('')", "'a,b,,c'.split(',')", "s.split(sep='l', maxsplit=1)", "'a</think>b'.split('</think>')[-1]", "'a\\nb\\r\\nc\\x0bd'.splitlines()", "'a\\nb\\n'.splitlines(true)", "s.partition(' ')", "s.partition('zz')", "s.rpartition('o')", "s.startswith('He')", "s.startswith(('x', 'H'))", "s.startswith('l', 2)", "s.endswith('ld')", "s.endswith(['a'])", "s.endswith('lo', 0, 5)",
    "s.find('o')", "s.find('o', 5)", "s.find('zz')", "s.rfind('o')", "s.index('W')", "s.index('zz')", "u.find('日')", "s.count('l')", "s.count('')", "'aaaa'.count('aa')", "s.replace('l', 'L')", "s.replace('l', 'L', 1)", "s.replace('', '-')", "'ab'.replace('', '-', 1)", "s.upper()", "u.upper()", "u.lower()", "u.title()", "u.capitalize()", "u.swapcase()", "'they are bill\\'s'.title()",
    "'-'.join(['a', 'b'])", "'-'.join('abc')", "'-'.join([1])", "'-'.join(words | map('upper'))", "s.removeprefix('He')", "s.removesuffix('xx')", "'abc'.isalpha()", "'١'.isdigit()", "'²'.isdigit()", "'²'.isdecimal()", "'½'.isnumeric()", "''.isalpha()", "' \\n'.isspace()", "'a1'.isalnum()", "'aB'.islower()", "'a1'.islower()", "'A1'.isupper()", "'1'.isupper()",
    "'7'.zfill(3)", "'-7'.zfill(4)", "'a'.ljust(3) ~ '|'", "'a'.rjust(3, '.')", "'ab'.center(5, '*')", "'abc'.center(6, '*')", "'{} {}'.format(1, 'a')", "'{0}{1}{0}'.format('a', 'b')", "'{x!r} {{}}'.format(x='y')", "'{}'.format()", "s.nosuch()", "s.nosuch", "s.upper is defined",
)
PERCENT = printed(
    "'%s' % 'a'", "'%s %s' % ('a', 1)", "'%d' % 3.9", "'%d' % '3'", "'%5.2f|%-5d|%05d|%+d|% d' % (1.234, 3, 4, 5, 6)", "'%x %X %o %#x' % (255, 255, 8, 255)", "'%e %g %G' % (12345.678, 0.00001, 1e20)", "'%r' % 'a'", "'%%'  % ()", "'%(a)s-%(b)d' % {'a': 'x', 'b': 2}", "'%s' % none", "'%s' % [1, 2]", "'%s %s' % 'a'", "'%s' % ('a', 'b')", "'%c%c' % (65, 'b')", "'%.2s' % '日本語'", "'%z' % 1", "'%5s|%-5s|' % ('é', 'é')", "'a' % ()", "'a' % 1", "'%s' % (1,)",
    "'%s and %s' | format('a', 2)", "'%(x)s' | format(x=1)", "'%.3d' % 5", "'%i' % true",
)
FILTERS = printed(
    "blank | trim", "'xax' | trim('x')", "s | upper", "s | lower", "u | upper", "'hello wORLD foo-bar (baz) {q} <w' | title", "'hELLO wORLD' | capitalize", "none | upper", "n | upper", "true | lower", "undefined_name | upper", "undefined_name | trim", "s | length", "u | length", "l | count", "d | length", "n | length", "undefined_name | length", "none | length", "range(4) | length",
    "l | first", "l | last", "[] | first", "'' | last", "d | first", "d | last", "undefined_name | first", "s | first", "l | list", "s | list", "d | list", "n | list", "undefined_name | list", "l | join", "l | join(', ')", "words | join('-', 'x')", "rows | join(',', attribute='k')", "undefined_name | join('x')", "[1, none, true, 1.0] | join('|')", "s | join('.')", "d | join(',')",
    "words | map('upper') | list", "words | map('length') | join(',')", "rows | map(attribute='k') | list", "rows | map(attribute='in.y') | list", "rows | map(attribute='in') | list", "rows | map(attribute='zz', default='-') | list", "l | map('string') | join", "[[1, 2], [3]] | map('join', '+') | list", "words | map('replace', 'a', 'o') | list", "l | map | list", "l | map('nosuch') | list", "[] | map('nosuch') | list", "undefined_name | map('upper') | list", "l | map(attribute='x', zz=1) | list",
    "l | select('odd') | list", "l | select | list", "[0, 1, '', none] | reject | list", "l | select('>', 1) | list", "l | select('in', [1, 2]) | list", "words | reject('equalto', 'Apple') | list", "rows | selectattr('v', '>', 1) | map(attribute='k') | list", "rows | selectattr('in') | list | length", "rows | rejectattr('in', 'defined') | list", "rows | selectattr('k', 'eq', 'x') | list", "rows | selectattr | list", "l | select('nosuch') | list",
    "l | sort", "l | sort(reverse=true)", "words | sort", "words | sort(case_sensitive=true)", "rows | sort(attribute='v') | map(attribute='v') | list", "rows | sort(attribute='k,v') | map(attribute='v') | list", "[1, 'a'] | sort", "s | sort", "d | sort", "words | unique | list", "words | unique(case_sensitive=true) | list", "rows | unique(attribute='k') | map(attribute='v') | list", "[1, 1.0, true, 2] | unique | list", "[[1], [1]] | unique | list",
    "s | reverse", "l | reverse | list", "u | reverse", "n | reverse", "l | min", "l | max", "words | min", "words | max(case_sensitive=true)", "[] | min", "rows | max(attribute='v')", "[1, 'a'] | max", "l | sum", "rows | sum(attribute='v')", "l | sum(start=10)", "words | sum", "[[1], [2]] | sum(start=[])", "[0.1, 0.2] | sum",
    "d | dictsort", "d | dictsort(true)", "{'b': 2, 'a': 3} | dictsort(by='value')", "{'b': 2, 'a': 3} | dictsort(reverse=true)", "{'b': 2} | dictsort(by='x')", "l | dictsort", "undefined_name | dictsort", "{1: 2, 'a': 3} | dictsort", "d | items | list", "l | items | list", "undefined_name | items | list", "none | items | list",
    "l | batch(2) | list", "l | batch(2, 'x') | list", "l | slice(2) | list", "l | slice(2, 'x') | list", "range(7) | batch(3) | map('sum') | list", "undefined_name | default('x')", "none | default('x')", "none | default('x', true)", "empty | d('x', boolean=true)", "undefined_name | default", "d.zzz | default([])", "n | default('x')",
    "'42' | int", "'42.9' | int", "'x' | int", "'x' | int(-1)", "'0x1F' | int(base=16)", "'1_000' | int", "' 7 ' | int", "3.9 | int", "-3.9 | int", "none | int", "true | int", "[] | int(5)", "'1e3' | int", "undefined_name | int", "'3.5' | float", "'x' | float", "'x' | float(1.5)", "'inf' | float", "3 | float", "'  -1e-3 ' | float", "neg | abs", "-2.5 | abs", "s | abs",
    "2.5 | round", "3.5 | round", "2.675 | round(2)", "1234.5678 | round(-2)", "2.1 | round(method='ceil')", "2.9 | round(0, 'floor')", "7 | round", "1250 | round(-2)", "2.5 | round(method='x')", "1.005 | round(2)", "n | string", "f | string ~ 'x'", "none | string", "l | string", "undefined_name | string",
    "html | escape", "html | e | e", "html | safe", "html | safe | escape", "(html | safe) + '<b>'", "'<b>' + (html | safe)", "'<b>' ~ (html | safe)", "(html | safe).upper()", "[html | safe]", "(html | safe) is escaped", "(html | safe) | length", "n | escape", "(html | safe) | tojson",
    "lines | indent", "lines | indent(2)", "lines | indent(2, true)", "lines | indent(2, blank=true)", "lines | indent('> ', first=true, blank=true)", "n | indent", "'a' | replace('a', 'b')", "'aaa' | replace('a', 'b', 2)", "n | replace(7, 8)", "'abc' | center(9) ~ '|'", "'a b, c' | wordcount", "d | attr('b')", "s | attr('upper') is defined", "rows | length * 2", "l | length > 2", "-l | length", "-7 | abs", "2 ** l | length", "not l | length", "s | upper | lower | title", "l | join(',') | length",
    "s|upper()", "s | upper(1)", "s | trim(x=1)", "l | first(1)",
)
JSON = printed(
    "d | tojson", "rows | tojson", "s | tojson", "u | tojson", "u | tojson(ensure_ascii=true)", "html | tojson", "none | tojson", "true | tojson", "f | tojson", "1e22 | tojson", "-0.0 | tojson", "'inf' | float | tojson", "'nan' | float | tojson", "[] | tojson", "{} | tojson", "[[], {}] | tojson(indent=2)", "d | tojson(indent=2)", "rows | tojson(indent=4)", "[1, [2]] | tojson(indent='\t')", "d | tojson(separators=(',', ':'))", "rows | tojson(sort_keys=true)",
    "[1] | tojson(indent=0)", "'\\x00\\x1f\\x7f\\u2028\"\\\\/\\b\\f' | tojson", "(1, 2) | tojson", "{1: 2, true: 3, none: 4, 1.5: 5} | tojson", "undefined_name | tojson", "{'a': undefined_name} | tojson", "range(3) | tojson", "d.items() | tojson", "{(1, 2): 3} | tojson", "d | tojson | safe", "d | tojson(true, 1)", "'😀' | tojson(ensure_ascii=true)",
)
TESTS = printed(
    "n is defined", "zz is defined", "zz is not defined", "zz is undefined", "none is none", "zz is none", "n is not none", "t is boolean", "1 is boolean", "1 is true", "t is true", "false is false", "0 is false", "n is integer", "t is integer", "f is integer", "f is float", "n is number", "t is number", "s is number", "s is string", "l is string", "zz is string", "d is mapping", "l is mapping", "zz is mapping",
    "l is sequence", "s is sequence", "d is sequence", "zz is sequence", "n is sequence", "range(2) is sequence", "d.items() is sequence", "(l | map('string')) is sequence", "l is iterable", "s is iterable", "n is iterable", "zz is iterable", "none is iterable", "d is iterable", "d.keys() is iterable", "range is callable", "n is callable", "n is odd", "n is even", "neg is odd", "n is divisibleby 7", "n is divisibleby(3)", "n is sameas 7",
    "none is sameas none", "n is eq 7", "n is equalto(8)", "n is ne 7", "n is gt 3", "n is lessthan 3", "n is ge 7", "n is le 6", "3 is in l", "3 is in(l)", "s is in [s]", "s is upper", "'AB' is upper", "'ab1' is lower", "'upper' is filter", "'zz' is filter", "'odd' is test", "n is defined and n is string or t", "n is defined is true", "not n is defined", "n is not string and true", "n + 1 is odd", "'a' is string ~ 'b'", "n is zzz", "d.get is callable", "namespace() is mapping", "namespace() is iterable",
)
GLOBALS = printed(
    "range(3)", "range(3) | list", "range(1, 4) | list", "range(5, 0, -2) | list", "range(1, 10, 3)", "range(0)", "range(3, 1) | list", "range(1, 2, 0)", "range(100001) | length", "range(100000) | length", "range('a')", "dict(a=1, b=2)", "dict({'a': 1}, b=2)", "dict([('a', 1)])", "dict([1])", "namespace(a=1)", "namespace(a=1).a", "namespace(a=1).b", "namespace({'a': 1}).a", "namespace(_x=1)", "raise_exception('stop')", "raise_exception('')", "nosuch()", "s()", "none()", "strftime_now('')", "strftime_now('%Y') | length",
)
STATEMENTS = [
    "{% set x = 1 %}{{ x }}", "{% set x = 1, 2 %}{{ x }}", "{% set a, b = 1, 2 %}{{ a }}{{ b }}", "{% set a, b = [1] %}", "{% set (a, b), c = (1, 2), 3 %}{{ a }}{{ b }}{{ c }}", "{% set a, b = 'xy' %}{{ a ~ b }}", "{% set x %}a{{ n }}b{% endset %}{{ x }}|{{ x | length }}", "{% set x | upper | trim %} a {% endset %}{{ x }}", "{% set x %}{% set y = 1 %}{% endset %}{{ y is defined }}",
    "{% set ns = namespace(x=0) %}{% for i in l %}{% set ns.x = ns.x + i %}{% endfor %}{{ ns.x }}", "{% set ns = namespace() %}{% set ns.a, ns.b = 1, 2 %}{{ ns.a }}{{ ns.b }}", "{% set d.b = 1 %}", "{% set zz.b = 1 %}", "{% set ns = namespace() %}{% set ns._a = 1 %}", "{% set ns = namespace(f=1) %}{% set ns.f %}text{% endset %}{{ ns.f }}", "{{ namespace(a=[1], b='x') }}",
    "{% set x = 0 %}{% for i in l %}{% set x = x + i %}{{ x }},{% endfor %}{{ x }}", "{% for i in l %}{% if loop.first %}{% set y = i %}{% endif %}{{ y is defined }}{% endfor %}", "{% if t %}{% set z = 5 %}{% endif %}{{ z }}", "{% if not t %}{% set n = 5 %}{% endif %}{{ n }}", "{% set n = n + 1 %}{{ n }}", "{% set true = 1 %}", "{% set s[0] = 1 %}", "{% set 1 = 1 %}",
    "{% for i in l %}{{ i }}{% if not loop.last %},{% endif %}{% endfor %}", "{% for i in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }} {% endfor %}", "{% for i in l %}{{ loop.previtem }}-{{ loop.nextitem }} {% endfor %}", "{% for i in l %}{{ loop.previtem is defined }} {% endfor %}", "{% for i in l %}{{ loop.previtem.x }}{% endfor %}", "{% for i in rows %}{{ loop.nextitem.k if loop.nextitem }} {% endfor %}",
    "{% for i in [] %}a{% else %}none{% endfor %}", "{% for i in l if i > 9 %}a{% else %}none{% endfor %}", "{% for i in l if i > 1 %}{{ loop.index }}:{{ i }}/{{ loop.length }} {% endfor %}", "{% for i in zz %}a{% else %}none{% endfor %}", "{% for i in none %}a{% endfor %}", "{% for i in n %}a{% endfor %}", "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}", "{% for k, v in d | items %}{{ k }};{% endfor %}", "{% for k in d %}{{ k }};{% endfor %}", "{% for c in u %}[{{ c }}]{% endfor %}",
    "{% for a, b in [(1, 2), [3, 4]] %}{{ a + b }} {% endfor %}", "{% for a, (b, c) in [(1, (2, 3))] %}{{ a + b + c }}{% endfor %}", "{% for a, b in [1] %}{% endfor %}", "{% for a, b in ['xy', 'zw'] %}{{ a }}{{ b }} {% endfor %}", "{% for x in 1, 2, 3 %}{{ x }}{% endfor %}", "{% for i in range(10) %}{% if i == 2 %}{% continue %}{% endif %}{% if i == 5 %}{% break %}{% endif %}{{ i }}{% endfor %}", "{% break %}",
    "{% for i in l %}{{ loop.cycle('a', 'b') }}{% endfor %}", "{% for i in [1, 1, 2] %}{{ loop.changed(i) }} {% endfor %}", "{% for i in l %}{% for j in l %}{{ loop.index }}{% endfor %}{{ loop.index }} {% endfor %}", "{% for i in l %}{% set outer = loop %}{% for j in [1, 2] %}{{ outer.index }}{{ j }} {% endfor %}{% endfor %}", "{% for i in l %}{% endfor %}{{ i is defined }}{{ loop is defined }}", "{% for x in tree recursive %}{{ x.n }}{% if x.c %}({{ loop(x.c) }}){% endif %}{% endfor %}", "{% for x in tree recursive %}{{ loop.depth }}{{ loop(x.c) }}{% endfor %}", "{% for x in l %}{{ loop(l) }}{% endfor %}", "{{ loop }}", "{% for i in l | map('string') %}{{ loop.last }}{{ i }}{% endfor %}", "{% for m in rows[::-1] %}{{ m.v }}{% endfor %}", "{% for i in l %}{{ loop | length }}{% endfor %}",
    "{% if n == 7 %}a{% elif n == 8 %}b{% else %}c{% endif %}", "{% if n == 6 %}a{% elif n == 7 %}b{% else %}c{% endif %}", "{% if zz %}a{% else %}b{% endif %}", "{% if zz.x %}a{% endif %}", "{% if '' %}a{% elif [] %}b{% elif {} %}c{% elif 0.0 %}d{% elif 'x' %}e{% endif %}", "{% if (1, ) %}a{% endif %}",
    "{% macro m(a, b=2) %}{{ a }}-{{ b }}{% endmacro %}{{ m(1) }} {{ m(1, 3) }} {{ m(b=4, a=5) }} {{ m() }}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(b=2) }}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, a=2) }}", "{% macro m(a, b) %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, 3, x=4) }}", "{% macro m(a, b=a ~ 'x') %}{{ b }}{% endmacro %}{{ m('q') }}", "{% macro m(a=1, b) %}{% endmacro %}", "{% macro m(n) %}{{ n }}{% if n > 0 %}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(3) }}",
    "{% macro m() %}{{ x }}{% endmacro %}{% set x = 1 %}{{ m() }}{% set x = 2 %}{{ m() }}", "{{ m() }}{% macro m() %}{% endmacro %}", "{% macro m() %}{% set q = 1 %}{% endmacro %}{{ m() }}{{ q is defined }}", "{% macro m() %} a {% endmacro %}{{ m() | trim }}|{{ m() | length }}", "{% macro m() %}{{ n }}{% endmacro %}{{ m() ~ 'x' }}{{ m() + 'y' }}", "{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}B{% endmacro %}{{ a() }}", "{% for i in l %}{% macro m() %}{{ i }}{% endmacro %}{{ m() }}{% endfor %}",
    "{% macro m(x) %}[{{ caller() }}{{ x }}]{% endmacro %}{% call m(1) %}in{{ n }}{% endcall %}", "{% macro m() %}{{ caller(1, 2) }}{% endmacro %}{% call(a, b) m() %}{{ a + b }}{% endcall %}", "{% macro m() %}x{% endmacro %}{% call m() %}{% endcall %}", "{% macro m() %}{{ caller() }}{% endmacro %}{{ m() }}", "{% macro m() %}{{ caller is defined }}{% endmacro %}{{ m() }}{% call m() %}{% endcall %}", "{% call n %}{% endcall %}", "{{ m }}{% macro k(*a) %}{% endmacro %}",
    "{% macro m(a, b) %}{{ a }}{{ b }}{% endmacro %}{{ m(*[1, 2]) }}{{ m(**{'a': 3, 'b': 4}) }}{{ m(1, *[2]) }}", "{{ range(*[1, 4]) | list }}", "{{ dict(**{'a': 1}) }}", "{{ dict(a=1, a=2) }}", "{{ range(**{'stop': 2}) }}",
    "{% filter upper %}a{{ s }}{% endfilter %}", "{% filter replace('a', 'b') | upper %}banana{% endfilter %}", "{% filter nosuch %}{% endfilter %}", "{% with a = 1, b = 2 %}{{ a + b }}{% endwith %}{{ a is defined }}", "{% with %}{% set q = 1 %}{{ q }}{% endwith %}{{ q is defined }}", "{% set a = 5 %}{% with a = 1, b = a %}{{ b }}{% endwith %}", 
    "{% generation %}a{{ n }}{% endgeneration %}b", "{% generation %}{% set q = 1 %}{{ q }}{% endgeneration %}{{ q is defined }}", "{% for i in l %}{% generation %}{{ i }}{{ loop.index }}{% endgeneration %}{% endfor %}", "{%- generation -%} x {%- endgeneration -%} y",
    "{# a #}x{# b -#}  y {#- c #} z", "a{#\n#}\nb", "{# {{ x }} {% if %} #}ok", "{# open", "{% raw %}{{ x }}{% if %}{# y #}{% endraw %}", "a {%- raw -%} {{ x }} {%- endraw -%} b", "{% raw %}\n a\n{% endraw %}\nb", "{% raw %} x", "{{ '{{' }}{{ '%}' }}{{ \"}}\" }}",
    "  {% if t %}\n  a\n  {% endif %}\nb", "x  {% if t %}\n  a\n  {% endif %}  \nb\n", "  {%+ if t %}\n a {%+ endif %}\n", "a\n  {{ n }}\n  b", "a \n {{- n -}} \n b", "{%- if t -%}\n  a  \n{%- endif -%}\n  b", "{% if t +%}\n a{% endif %}", "{% if t -%} \n\n a {%- endif %}\n\nb\n\n", "\n{% set a = 1 %}\n\n{{ a }}\n", "a\r\nb\r{{ n }}\r\n", "{{ n }}\n", "{{ n }}\n\n", "\t{% if t %}\tx\n\t{% endif %}\t\ny", "a {# c #} b\n  {# c #}\nd", "{{- '' }}\u00a0{%- if t %}\u00a0x\u00a0{% endif -%}\u00a0y", "{% for i in l %}\n{{ i }}\n{% endfor %}\nend", "   {%- for i in l %}   \n   {{ i }}   \n   {%- endfor %}   \n", "}} %} #} {", "{ {x} }", "{%if t%}a{%else%}b{%endif%}", "{{n}}{{-n}}{{n-}} x", "{%\nif\nt\n%}a{%\nendif\n%}",
    "{{ 'a\nb' }}", "{{ s\n | upper\n }}", "{{ {'a': '}}'} }}", "{{ [1, {'a': [2]}] }}",
    "{{ }}", "{{ 1 2 }}", "{{ 1 + }}", "{{ (1 }}", "{{ [1 }}", "{{ 1] }}", "{{ 'a }}", "{{ a.}}", "{{ a.'b' }}", "{{ a[] }}", "{{ a|}}", "{{ a is }}", "{{ n is string is true }}", "{{ @ }}", "{{ a ? b }}", "{{ n = 1 }}", "{% %}", "{% if %}{% endif %}", "{% if t %}", "{% endif %}", "{% if t %}{% endfor %}", "{% for in l %}{% endfor %}", "{% for x l %}{% endfor %}", "{% for x in l %}{% else %}{% else %}{% endfor %}", "{% else %}", "{% nosuch %}", "{% macro %}{% endmacro %}", "{% set %}", "{% set x %}", "{{ x", "{% if t", "{{ f(a=1, 2) }}", "{{ f(**{}, *[]) }}", "{{ 1 if }}", "{{ not }}", "{{ * }}", "{{ a b }}", "{% if t %}{% elif %}{% endif %}",
    "{{ s | nosuch }}", "{% if not t %}{{ s | nosuch }}{% endif %}ok", "{{ (s | nosuch) if not t else 'ok' }}", "{% if t %}{{ s | nosuch }}{% endif %}", "{% if not t %}{{ s is nosuch }}{% endif %}ok", "{{ s is nosuch }}",
    "{% set a = l %}{% set l = [9] %}{{ a }}{{ l }}", "{% set ns = namespace(l=[]) %}{% for i in l %}{% set ns.l = ns.l + [i * 2] %}{% endfor %}{{ ns.l }}", "{% set x = l | map('string') %}{{ x | join }}{{ x | join }}", "{% set it = rows | map(attribute='v') %}{{ it | first }}{{ it | list }}", "{% set j = joiner(', ') %}{% for i in l %}{{ j() }}{{ i }}{% endfor %}", "{{ d | dictsort | first | first }}", "{{ rows | map(attribute='k') | unique | join(', ') }}", "{{ {'role': 'x'}.role }}", "{{ 'a' if s == 'x' else 'b' if s == 'y' else 'c' }}", "{{ [s, u] | map('length') | sum }}", "{{ (rows | selectattr('k', 'equalto', 'Y') | first).v }}", "{{ (rows | selectattr('k', 'equalto', 'Q') | first).v }}", "{{ (rows | selectattr('k', 'equalto', 'Q') | list | first) is defined }}",
]
SNIPPETS = LITERALS + ARITHMETIC + COMPARISON + ACCESS + STRING_METHODS + PERCENT + FILTERS + JSON + TESTS + GLOBALS + STATEMENTS

# What jinja2 accepts and braid refuses when it parses, with words of the message.
UNSUPPORTED = [
    ("a\n{% include 'x' %}", ":2: unsupported tag 'include'"),
    ("{% import 'x' as y %}", ":1: unsupported tag 'import'"),
    ("{% from 'x' import y %}", ":1: unsupported tag 'from'"),
    ("{% extends 'x' %}", ":1: unsupported tag 'extends'"),
    ("\n\n{% block a %}{% endblock %}", ":3: unsupported tag 'block'"),
    ("{% print 1 %}", ":1: unsupported tag 'print'"),
    ("{% autoescape true %}{% endautoescape %}", ":1: unsupported tag 'autoescape'"),
    ("{{ x | urlize }}", ":1: unsupported filter 'urlize'"),
    ("{% if x %}\n{{ x | groupby('a') }}{% endif %}", ":2: unsupported filter 'groupby'"),
    ("{{ 123456789012345678901234567890 }}", ":1: unsupported number"),
    ("{{ " + "(" * 500 + "1" + ")" * 500 + " }}", ":1: unsupported nesting"),
    ("{{ 1" + " + 1" * 500 + " }}", ":1: unsupported expression"),
]
