"""Writes crates/jinja/tests/golden/templates.json: templates, and their results in Jinja2 as transformers configures it.

    python scripts/golden_jinja.py                    writes the golden file
    python scripts/golden_jinja.py --random 5000 SEED FILE   writes a file of random expressions instead

Needs jinja2 and transformers. Last run with jinja2 3.1.6, transformers 5.24.0, and Python 3.11.7.
`text` is the rendered template, or null if Jinja2 raises an error.
"""

import copy
import json
import random
import sys
from datetime import datetime
from pathlib import Path

from transformers.utils.chat_template_utils import _cached_compile_jinja_template

FOLDER = Path(__file__).parent.parent / "crates/jinja/tests"
NOW = datetime(2024, 7, 26)

CHAT = {
    "messages": [
        {"role": "system", "content": "Be terse."},
        {"role": "user", "content": "What's 2 + 2?\n"},
        {
            "role": "assistant",
            "content": "<think>\nAdd them.\n</think>\n\nLet me see.",
            "tool_calls": [
                {"type": "function", "id": "call00001", "function": {"name": "add", "arguments": {"a": 2, "b": [2.5, None, True], "é": "<&>"}}}
            ],
        },
        {"role": "tool", "tool_call_id": "call00001", "name": "add", "content": "4"},
        {"role": "assistant", "content": "It is 4."},
        {"role": "user", "content": [{"type": "text", "text": "Thanks é"}, {"type": "image"}]},
    ],
    "tools": [
        {
            "type": "function",
            "function": {
                "name": "add",
                "description": "Adds.",
                "parameters": {
                    "type": "object",
                    "properties": {
                        "a": {"type": "number", "description": "One"},
                        "b": {"type": ["string", "null"], "enum": ["x", "y"], "default": "x"},
                        "c": {"type": "array", "items": {"type": "integer"}},
                    },
                    "required": ["a"],
                },
                "return": {"type": "string"},
            },
        }
    ],
    "documents": None,
    "add_generation_prompt": True,
    "bos_token": "<s>",
    "eos_token": "</s>",
}
SHORT = {
    "messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}],
    "tools": None,
    "documents": None,
    "add_generation_prompt": False,
    "bos_token": "<s>",
    "eos_token": "</s>",
}
VALUES = {
    "i": 7,
    "n": -7,
    "z": 0,
    "f": 2.5,
    "t": True,
    "nil": None,
    "s": "Hello, World",
    "u": "Grüße, 世界 🙂",
    "e": "",
    "q": "it's \"q\"\n\t\\",
    "w": "  two  words \n",
    "l": [3, 1, 2],
    "m": [1, "a", None, True, 2.5, [1], {"k": "v"}],
    "el": [],
    "d": {"b": 1, "a": [1, 2], "items": "own", "get": 5},
    "ed": {},
    "people": [
        {"name": "Bo", "age": 30, "city": {"name": "Rome"}},
        {"name": "al", "age": 25, "city": {"name": "oslo"}},
        {"name": "Cy", "age": 30, "city": {"name": "Oslo"}},
        {"name": "di"},
    ],
    "tree": [{"v": 1, "c": [{"v": 2, "c": []}, {"v": 3, "c": [{"v": 4, "c": []}]}]}, {"v": 5, "c": []}],
    "big": 18446744073709551615,
    "html": "<a href=\"x\">B & 'c'</a>",
}

EXPRESSIONS = r"""
# Numbers
7 // 2
-7 // 2
7 // -2
-7 % 3
7 % -3
-7.5 // 2
7.5 % -2
-0.0 // 1
5.5 // 1.5
1 / 3
4 / 2
7 / 0
7 // 0
7 % 0
1.0 / 0
2 ** 10
2 ** -1
2 ** 0.5
-2 ** 2
2 ** 3 ** 2
0 ** 0
0 ** -1
0.0 ** -1
(-1) ** 3
10 ** 20
1 + True
True + True
-True
+True
+-+-3
1.0
1e16
1e15
123456789012345678.0
1e-4
1e-5
0.1 + 0.2
1e22
1e23
1.5e300 * 1e300
-1.5e300 * 1e300
1.5e300 * 1e300 - 1.5e300 * 1e300
100000000000000000000 + 1
big + 1
0x1F + 0b11 + 0o17 + 1_000
1_0.5
.5
5.
1.e5
1E3
01
007
00
3 - - 3
2 - 3 - 4
2 * 3 + 4 * 5
2 + 3 ~ 4 + 5
1 ~ 2 + 3
7 % 4 * 2
not 1 == 2
1 if 0
1 if 0 else 2 if 0 else 3
[1, 2][0] + 1
1 + 'a'
'a' + 1
'a' * 3
3 * 'ab'
'a' * -1
'a' * True
[1, 2] * 2
2 * [0]
(1, 2) * 2
[1] + [2]
(1,) + (2,)
[1] + (2,)
'a' - 'b'
[1] - [1]
none + 1
'a' * 1.5
1.5 * 2
3.0 * 2
3 * 2.0
7.0 // 2
i // 2 ~ n // 2 ~ f // 2
-i
-f
-s
+s
- - i
10 - 2.5
True / 2
1e308 * 10
# Comparisons
1 == 1.0
1 == True
0 == False
'1' == 1
none == none
none == false
[1, 2] == [1, 2]
[1] == (1,)
{'a': 1, 'b': 2} == {'b': 2, 'a': 1}
[1, [2.0]] == [True, [2]]
1 < 2 < 3
1 < 3 < 2
3 > 2 > 1 > 0
1 < 2 > 1
1 == 1 in [True]
'a' < 'b'
'a' < 'B'
'a' < 'aa'
[1, 2] < [1, 3]
[1] < [1, 0]
(1, 'a') < (1, 'b')
1 < 'a'
none < 1
[1] < (1,)
{} < {}
1 < nil
True < 2
2.5 >= 2
big > 1e19
9007199254740993 == 9007199254740992.0
9007199254740993 > 9007199254740992.0
1 != 1.0
'a' != 'a'
1 in [1.0]
'a' in 'abc'
'' in ''
1 in 'abc'
none in 'abc'
'b' not in 'abc'
'k' in {'k': 1}
1 in {1.0: 2}
[1] in {1: 2}
2 in range(3)
2.0 in range(3)
2.5 in range(3)
'a' in range(3)
1 in none
1 in 5
missing in [1]
missing in 'abc'
1 in missing
missing == missing
missing != none
missing < 1
not missing
not (1 and 0)
1 and 2
0 or 'x'
'' or none
'' and missing.x
1 or missing.x
not not 'a'
(1, 2, 3) | length
() | length
(1,)
()
1, 2
[1, 2,]
[,]
{'a': 1,}
# Printing
1
1.50
true
True
false
none
None
[1, 'a', none, true, 1.0, 1e16, [], {}, ()]
{'a': 1, 2: 'b', none: [1], (1, 2): 3.5}
{1: 'a', 1.0: 'b', true: 'c'}
{'a': 1, 'a': 2, 'b': 3}
m
d
q
[q]
['it\'s']
['a"b']
['a"b\'c']
['\n\t\r\\ \x00 \x1f \x7f \xa0 é 世 🙂 \u200d \ufeff']
[missing]
{'a': missing}
range(5)
range(1, 10, 3)
range(0)
range(3) | list
range(5, 0, -2) | list
range(-3) | list
d.keys()
d.values()
{'a': 1}.items()
namespace(a=1, b='x')
namespace({'a': 1}, b=2)
people
-0.0
[-0.0, 1e100, 1.0e-7]
'a' 'b' "c"
'\u00e9\x41\101\0\a' | length
'\q\é\世'
'a\
b'
'\x4'
big
# Undefined
missing
missing.x
missing['x']
missing[0]
missing()
missing | default('d')
missing.x | default('d')
d.zz
d.zz.y
d.zz is defined
d['zz'] is defined
d.zz | default('no')
nil | default('no')
nil | default('no', true)
e | default('no', boolean=true)
e | d('no')
missing ~ 'a'
missing + 'a'
'a' + missing
missing | length
missing | list
missing | upper
missing | trim
missing | join(',')
missing | int
missing | float
missing | tojson
missing | string | length
missing | first
missing | last
missing | sort
missing | map('upper') | list
missing | sum
missing | replace('a', 'b')
missing | items | list
missing | dictsort
missing | reverse | list
missing | abs
missing | round
missing | title
missing | indent
missing | truncate(5)
missing | center(5)
missing | wordcount
missing | escape
missing | unique | list
missing | min
missing | groupby('a')
missing | batch(2) | list
missing | format(1)
missing | attr('x')
missing | capitalize
missing | urlencode
missing | xmlattr
missing | striptags
missing | filesizeformat
missing[1:]
missing * 2
-missing
missing is string
missing is mapping
missing is sequence
missing is iterable
missing is number
missing is none
missing is callable
missing is odd
missing is lower
missing is in [1]
missing is eq missing
'%s' % missing
'%d' % missing
nil.x
nil.x.y
nil['x'] is defined
i.x is defined
s.x is defined
l.x is defined
s[100] is defined
l[100] is defined
l[100].x
l['a'] is defined
l[1.0] is defined
d[[1]] is defined
(1 if false) is defined
(1 if false).x
# Attributes, items and slices
d.a
d['a']
d.items
d['items']
d.items()
d.get('a')
d.get('zz')
d.get('zz', 5)
d['get']
d.keys() | list
d.values() | list
people[0].city.name
people[0]['city']['name']
people.0.name
l[0]
l[-1]
l[true]
l.0
l[1:]
l[:1]
l[::-1]
l[::2]
l[-2:]
l[5:]
l[2:0:-1]
l[::0]
l[none:2]
l['a':]
s[0]
s[-1]
s[1:4]
s[::-1]
s[-5:]
s[::3]
s[10:2:-2]
s[20:]
u[0:3]
u[::-1]
u[-1]
u[2]
(1, 2, 3)[1:]
range(10)[2:8:2]
range(10)[2]
range(10)[-1]
range(10)[20] is defined
range(10)[::-1]
d[1:]
i[0] is defined
i[1:]
nil[0] is defined
d.__class__
d.__class__ is defined
s.__len__()
d._x is defined
s['upper']()
s['upper'] is defined
d['keys']() | list
l.append(1)
l.sort()
d.update({'a': 1})
d.pop('a')
d.setdefault('x', 1)
d.clear()
l.copy()
l.count(1)
l.index(2)
l.index(9)
l.index(2, 0, 1)
(1, 2).index(2)
d.copy() == d
namespace(a=1).a
namespace(a=1).b is defined
namespace(a=1)['a']
namespace(a=1) is mapping
namespace(_a=1)
namespace(1)
namespace([('a', 1)]).a
dict(a=1, b=2)
dict([('a', 1)])
dict({'a': 1}, b=2)
dict(**{'x': 1})
dict(1)
dict([1])
dict(*[[('a', 1)]])
range(1, 2, 3, 4)
range('a')
range(1.5)
range(100001)
range(1, 5, 0)
# Texts
s.upper()
s.lower()
s.title()
s.capitalize()
s.swapcase()
s.casefold()
"they're bill's".title()
'ab cd-ef_gh 3rd'.title()
'ÀÉ straße'.upper()
'ὈΔΥΣΣΕΎΣ ΑΣ'.lower()
'élan VITAL'.capitalize()
'éLAN vital'.title()
w.strip()
w.lstrip()
w.rstrip()
'xxaxx'.strip('x')
'xyaxy'.lstrip('yx')
'xyaxy'.rstrip('yx')
'xax'.strip('')
'xax'.strip(none)
'a'.strip(1)
'\x1ca\u2003'.strip() | length
'a,b,,c'.split(',')
'a,b,,c'.split(',', 1)
'a,b,,c'.split(',', maxsplit=2)
'a,b,,c'.split(sep=',')
'a,b,,c'.rsplit(',', 1)
'a,b,,c'.rsplit(',')
'aaa'.rsplit('aa')
'aaa'.split('aa')
w.split()
w.split(none, 1)
w.rsplit(none, 1)
w.split(' ')
'a b  c '.split(maxsplit=1)
' a b  c '.rsplit(maxsplit=1)
''.split()
''.split(',')
'a'.split('')
'a'.split(1)
'a\nb\r\nc\rd\x0be\x1cf\u2028g'.splitlines()
'a\n\nb\n'.splitlines()
'a\nb\n'.splitlines(true)
''.splitlines()
'a=b=c'.partition('=')
'a=b=c'.rpartition('=')
'abc'.partition('=')
'abc'.rpartition('=')
'abc'.partition('')
s.startswith('He')
s.startswith(('x', 'H'))
s.startswith(['x'])
s.startswith('l', 2)
s.startswith('l', 2, 3)
s.startswith('', 99)
s.endswith('ld')
s.endswith(('x', 'd'))
s.endswith('l', 0, 4)
s.startswith(1)
s.startswith()
s.find('o')
s.find('o', 5)
s.find('zz')
s.rfind('o')
s.index('zz')
s.index('W')
s.rindex('l')
s.count('l')
s.count('')
'aaaa'.count('aa')
s.count('l', 3)
u.find('世')
u.rfind('ß')
s.find('o', -3)
s.find('', 5)
s.find('', 50)
s.replace('l', 'L')
s.replace('l', 'L', 1)
s.replace('l', 'L', 0)
s.replace('l', 'L', -1)
s.replace('', '-')
s.replace('', '-', 2)
s.replace('l')
s.replace(1, 2)
'abc'.isdigit()
'123'.isdigit()
''.isdigit()
'12a'.isdigit()
'١٢'.isdigit()
'abc'.isalpha()
'été世'.isalpha()
'ab1'.isalpha()
'ab1'.isalnum()
'ab 1'.isalnum()
'12'.isdecimal()
'12'.isnumeric()
'abc'.islower()
'aBc'.islower()
'123'.islower()
'ABC 1'.isupper()
'Ab Cd'.istitle()
'Ab cd'.istitle()
' \n'.isspace()
''.isspace()
'abc'.isascii()
u.isascii()
'ab_1'.isidentifier()
'1a'.isidentifier()
'a\n'.isprintable()
u.isprintable()
','.join(['a', 'b'])
','.join('abc')
','.join([])
','.join([1])
','.join(d)
','.join(people | map(attribute='name'))
'42'.zfill(5)
'-42'.zfill(5)
'+4'.zfill(4)
'abc'.zfill(2)
'a'.center(5) ~ '|'
'a'.center(4) ~ '|'
'ab'.center(5, '*') ~ '|'
'ab'.center(1)
'a'.ljust(3, '.') ~ '|'
'a'.rjust(3) ~ '|'
'a'.rjust(3, 'xy')
'a\tb\tcc'.expandtabs()
'a\tb'.expandtabs(4)
'a\tb'.expandtabs(tabsize=0)
'prefix-x'.removeprefix('prefix-')
'x.txt'.removesuffix('.txt')
'abc'.removeprefix('x')
'abc'.removesuffix('')
s.upper(1)
s.nothing()
'{} {}'.format(1, 'a')
'{0} {1} {0}'.format('a', 'b')
'{a} {b}'.format(a=1, b=2)
'{} {0}'.format(1)
'{}'.format()
'{x}'.format()
'{{}} {}'.format(1)
'{'.format()
'}'.format()
'{:>5}|{:<5}|{:^5}|'.format('a', 'b', 'c')
'{:*^7}'.format('ab')
'{:05d}'.format(42)
'{:+d} {: d}'.format(5, 5)
'{:,}'.format(1234567)
'{:_}'.format(1234567)
'{:x} {:X} {:b} {:o} {:#x}'.format(255, 255, 5, 8, 255)
'{:.2f}'.format(3.14159)
'{:8.3f}|'.format(3.14159)
'{:.3}'.format('abcdef')
'{:e}'.format(12345.678)
'{:g} {:g} {:g}'.format(0.00001, 100000.0, 1e20)
'{:.0f} {:.0f} {:.0f}'.format(0.5, 1.5, 2.5)
'{:%}'.format(0.25)
'{:.1%}'.format(0.256)
'{:,.2f}'.format(1234567.891)
'{!r} {!s}'.format('a', 'b')
'{!a}'.format('é')
'{0[a]} {0[b]}'.format({'a': 1, 'b': 2})
'{0.name}'.format({'name': 'x'})
'{[0]}'.format([7])
'{:{}}|'.format('a', 5)
'{:d}'.format('a')
'{:d}'.format(1.5)
'{}'.format(none)
'{:5}'.format(none)
'{:>5}'.format(true)
'{:d}'.format(true)
'{}'.format(true)
'{:.3}'.format(3.14159)
'{:.3}'.format(1234567.0)
'{:10}|'.format(1.5)
'{:<10}|'.format(15)
'{:s}'.format(1)
'{a}'.format_map({'a': 1})
# printf formats
'%s' % 'a'
'%s' % 1
'%s %s' % ('a', 1)
'%s' % [1, 2]
'%s' % (1, 2)
'%s' % ((1, 2),)
'%s' % {'a': 1}
'%(a)s-%(b)d' % {'a': 1, 'b': 2}
'%(zz)s' % {'a': 1}
'%(a)s' % 1
'abc' % [1]
'abc' % 1
'abc' % {}
'abc' % ()
'%d' % 3.7
'%d' % -3.7
'%d' % '3'
'%d' % true
'%i|%u' % (1, 2)
'%5d|%-5d|%05d' % (42, 42, 42)
'%+d|% d' % (42, 42)
'%x|%X|%o|%#x|%#o' % (255, 255, 8, 255, 8)
'%x' % 1.5
'%.3d' % 5
'%f' % 3.14159
'%.2f|%8.2f|%-8.2f|%08.2f' % (3.14159, 3.14159, 3.14159, -3.14159)
'%e' % 12345.678
'%E' % 0.00012
'%g|%g|%g|%g' % (0.00001, 123456789, 1.0, 0.1)
'%.3g' % 1234.5
'%f' % 'a'
'%5s|%-5s|' % ('a', 'b')
'%.2s' % 'abcdef'
'%c%c' % (65, 'b')
'%c' % 'ab'
'%r' % 'a'
'%a' % 'é'
'%%' % ()
'100%%'
'%' % 1
'%y' % 1
'%*d' % (5, 42)
'%s %s' % 'a'
'%s' % missing
'%s' % none
'%-+5d|' % 3
'%s' % u
'%s and %s' | format('a', 'b')
'%(x)s' | format(x=1)
'%s' | format
'%d' | format('x')
'%s' | format(1, x=2)
'%.1f' % 0.25
'%.0f' % 0.5
'%.15g' % 0.1
'%d' % 1e15
# Filters
-5 | abs
-5.5 | abs
'a' | abs
true | abs
-5 | abs | string
s | attr('upper')()
d | attr('a') is defined
people[0] | attr('name') is defined
[1, 2, 3, 4, 5] | batch(2) | list
[1, 2, 3] | batch(2, 'x') | list
[] | batch(2) | list
'abc' | batch(2) | list
[1, 2, 3, 4, 5] | slice(2) | list
[1, 2, 3, 4, 5] | slice(3, 'x') | list
[1] | slice(3) | list
[] | slice(2, 0) | list
[1] | slice(0) | list
'hello WORLD' | capitalize
1 | capitalize
'a' | center(5) ~ '|'
[1, 2] | count
d | length
1 | length
'été' | length
{'b': 1, 'A': 2, 'c': 0} | dictsort
{'b': 1, 'A': 2, 'c': 0} | dictsort(true)
{'b': 1, 'A': 2, 'c': 0} | dictsort(by='value')
{'b': 1, 'A': 2, 'c': 0} | dictsort(false, 'value', true)
{'b': 1, 'A': 2} | dictsort(reverse=true)
{'b': 1, 1: 2} | dictsort
{'a': 1} | dictsort(by='x')
html | escape
html | e
html | escape | escape
html | forceescape
html | safe
html | safe | length
[html | e]
(html | e) ~ '<'
'<' ~ ('<' | e)
('<' | e) + '<'
'<' + ('<' | e)
('<' | e) | upper
('a' | safe) == 'a'
(html | e) is escaped
html is escaped
1 | filesizeformat
0 | filesizeformat
999 | filesizeformat
1000 | filesizeformat
1234567 | filesizeformat
1234567 | filesizeformat(true)
1e30 | filesizeformat
'1000' | filesizeformat
'x' | filesizeformat
l | first
'' | first
e | first is defined
d | first
l | last
s | last
d | last
[] | last
(l | map('string')) | last
'3.5' | float
'x' | float
'x' | float(1.5)
' 1e3 ' | float
'1_0.5' | float
'inf' | float
'-nan' | float
none | float
true | float
[1] | float
'.5' | float
'5.' | float
'0x10' | float
people | map(attribute='name') | list
people | map(attribute='city.name') | list
people | map(attribute='city.name', default='?') | list
people | map(attribute='age', default=0) | sum
people | map('length') | list
['a', 'B'] | map('upper') | join
['a'] | map('nofilter')
['a'] | map('nofilter') | list
['a'] | map | list
[1.25, 2.35] | map('round', 1) | list
['a-b'] | map('replace', '-', '+') | list
[[1, 2], [3]] | map('first') | list
[[1, 2], [3]] | map(attribute=0) | list
[[1, 2], [3]] | map(attribute='0') | list
[[1, 2], [3]] | map('join', ',') | list
['1', '2'] | map('int') | sum
['x'] | map('default', 'y') | list
people | groupby('age') | list | length
people[:3] | groupby('city.name')
people[:3] | groupby('age') | map(attribute='list') | map('length') | list
people[:3] | groupby('age') | map(attribute='grouper') | list
people[:3] | groupby('city.name', case_sensitive=true) | map('first') | list
people | groupby('age', default=1) | map('first') | list
'a\nb\n\nc' | indent
'a\nb' | indent(2)
'a\nb' | indent(2, true)
'a\n\nb' | indent(2, blank=true)
'a\nb' | indent('> ', first=true)
'' | indent
'a\n' | indent ~ '|'
'a\r\nb' | indent
1 | indent
'42' | int
'42.7' | int
'-42.7' | int
42.7 | int
'x' | int
'x' | int(5)
'x' | int(default=none)
'0x1F' | int(0, 16)
'1F' | int(base=16)
'0b11' | int(0, 2)
'0o17' | int(0, 0)
'z' | int(0, 36)
'1_000' | int
' 12 ' | int
'1e3' | int
'inf' | int
none | int
none | int(3)
true | int
[1] | int(9)
'' | int
'--1' | int
[1, 2, 3] | join
[1, 2, 3] | join(', ')
[1, none, 'a', 1.5, true] | join('-')
people | join(',', attribute='name')
'abc' | join('.')
{'a': 1, 'b': 2} | join
1 | join
[1, 2] | join(0)
[[1], {'a': 'b'}] | join(' ')
'abc' | list
d | list
(1, 2) | list
1 | list
none | list
'ABC' | lower
none | lower
[3, 1, 2] | max
[3, 1, 2] | min
['b', 'A'] | min
['b', 'A'] | min(true)
['b', 'A'] | max(case_sensitive=true)
people[:3] | max(attribute='age')
people[:3] | min(attribute='name')
[] | max
[1, 'a'] | max
[1.0, 1] | max
s | max
[1, 'a', none] | pprint
'a' | pprint
{'a': 1} | pprint
[1, 2, 3, 4] | reject('odd') | list
[1, 2, 3, 4] | select('odd') | list
[1, 2, 3, 4] | select('divisibleby', 2) | list
[1, 2, 3, 4] | select('greaterthan', 2) | list
[1, 2, 3, 4] | select('>', 2) | list
[1, 2, 3, 4] | select('in', [1, 4]) | list
[0, 1, '', 'a', none] | select | list
[0, 1, '', 'a', none] | reject | list
[1] | select('nope') | list
people | selectattr('age') | map(attribute='name') | list
people | rejectattr('age') | map(attribute='name') | list
people | selectattr('age', 'equalto', 30) | map(attribute='name') | list
people | selectattr('age', 'defined') | list | length
people | selectattr('age', '==', 30) | first
people | rejectattr('age', 'eq', 30) | map(attribute='name') | join
people | selectattr('city.name', 'eq', 'Rome') | list | length
people | selectattr | list
people | selectattr('age', '<', 5) | list
people[:3] | selectattr('age', 'lt', 30) | map(attribute='name') | list
people | selectattr('name', 'in', ['Bo', 'di']) | map(attribute='name') | list
people | selectattr('name', 'ne', 'Bo') | list | length
people | selectattr('age', 'eq', 99) | first is defined
(people | selectattr('age', 'eq', 30)) | length
(people | selectattr('age', 'eq', 30))[0] is defined
'aXbX' | replace('X', '-')
'aXbX' | replace('X', '-', 1)
'aXbX' | replace('X', '-', count=1)
123 | replace(2, 'x')
'abc' | replace('', '-')
'abc' | reverse
[1, 2] | reverse | list
d | reverse | list
range(3) | reverse | list
1 | reverse
(l | map('string')) | reverse
42.55 | round
42.55 | round(1)
42.45 | round(1)
42 | round
42 | round(1)
1234 | round(-2)
1250 | round(-2)
1350 | round(-2)
1234.5 | round(-2)
-15.0 | round(-1)
2.5 | round
3.5 | round
-2.5 | round
0.5 | round
42.55 | round(1, 'floor')
42.55 | round(1, 'ceil')
42.1 | round(method='ceil')
42 | round(0, 'ceil')
-42.5 | round(0, 'floor')
42.5 | round(0, 'x')
'a' | round
true | round
2.675 | round(2)
1e16 | round
42.55 | round | int
[3, 1, 2] | sort
[3, 1, 2] | sort(true)
[3, 1, 2] | sort(reverse=true)
['b', 'A', 'c'] | sort
['b', 'A', 'c'] | sort(case_sensitive=true)
people[:3] | sort(attribute='age') | map(attribute='name') | list
people[:3] | sort(attribute='age', reverse=true) | map(attribute='name') | list
people[:3] | sort(attribute='age,name') | map(attribute='name') | list
people[:3] | sort(attribute='city.name') | map(attribute='name') | list
[1, 'a'] | sort
[none, 1] | sort
[true, 0, 2] | sort
'hello' | sort
{'b': 1, 'a': 2} | sort
[[2, 1], [1, 5]] | sort
people | sort(attribute='age')
[1.5, 1, 2] | sort
1 | string
none | string
1.0 | string
[1] | string
'<p>a <b>b</b>\n c</p>' | striptags
'a &lt; b &amp;lt; c <!-- x > y --> d' | striptags
'a < b' | striptags
[1, 2, 3] | sum
[1.5, 2] | sum
[] | sum
[1, 2] | sum(start=10)
[[1], [2]] | sum(start=[])
people[:3] | sum(attribute='age')
people[:3] | sum('age')
['a', 'b'] | sum
['a'] | sum(start='')
[true, true] | sum
"it's a big-world (of things) o'neil" | title
'ÉTÉ-élan' | title
'  a ' | trim ~ '|'
'xxaxx' | trim('x')
1 | trim
none | trim
'foo bar baz qux' | truncate(9)
'foo bar baz qux' | truncate(9, true)
'foo bar baz qux' | truncate(11)
'foo bar baz qux' | truncate(11, false, '...', 0)
'foo bar baz qux' | truncate(9, end='')
'foobarbazqux' | truncate(6, leeway=0)
'abc' | truncate(1)
'abc' | truncate(2, end='...')
[1, 2, 1, 'a', 'A', 1.0, true] | unique | list
['a', 'A'] | unique(true) | list
people[:3] | unique(attribute='age') | map(attribute='name') | list
[[1]] | unique | list
'abcabc' | unique | join
'hello' | upper
1.5 | upper
'a b/c?d=é&f' | urlencode
{'a b': 1, 'c': 'd/e'} | urlencode
[('a', 1), ('b', '&')] | urlencode
1 | urlencode
"a b-c d_e's" | wordcount
'' | wordcount
'été 世界' | wordcount
'aaa bbb ccc ddd' | wordwrap(7)
'aaa bbb\nccc ddd' | wordwrap(5)
'aaaaaaaaaa bb' | wordwrap(4)
'aaaaaaaaaa bb' | wordwrap(4, false)
'aaa bbb ccc' | wordwrap(7, wrapstring='|')
'a  b   c' | wordwrap(3)
{'class': 'a b', 'id': none, 'x': 1} | xmlattr
{'a': '<'} | xmlattr(false)
{'a b': 1} | xmlattr
{} | xmlattr
d | items | list
d | items
l | items | list
d.items() | list
d.items() | map('first') | list
'x' | nofilter
1 if false else ('x' | nofilter)
1 if true else ('x' | nofilter)
'x' is notest
1 | default
[1, 2] | first | string
l | sort | join(',') | upper
l | map('string') | join('-')
'a' | upper | lower | title
l|length + 1
1 + l|length
-1|abs
- 1|abs
2 ** 2|string
'a' ~ 'b'|upper
('a' ~ 'b')|upper
# JSON
m | tojson
d | tojson
u | tojson
u | tojson(ensure_ascii=true)
q | tojson
'</script>&\'' | tojson
'\x00\x1f\x7f\u2028' | tojson
'\x7f' | tojson(ensure_ascii=true)
m | tojson(indent=2)
d | tojson(indent=4)
d | tojson(indent=0)
d | tojson(indent='\t')
d | tojson(indent=none)
d | tojson(indent=true)
d | tojson(indent=1.5)
{} | tojson(indent=2)
[] | tojson(indent=2)
[[], {}] | tojson(indent=2)
d | tojson(sort_keys=true)
{'b': {'d': 1, 'c': 2}, 'a': 1} | tojson(sort_keys=true)
{'b': 1, 2: 1} | tojson(sort_keys=true)
d | tojson(separators=(',', ':'))
d | tojson(separators=[', ', ' = '])
d | tojson(separators=(',',))
d | tojson(true)
u | tojson(true, 2)
{1: 1, 1.5: 2, none: 3, true: 4, 'a': 5} | tojson
{(1, 2): 1} | tojson
(1, 2) | tojson
range(3) | tojson
(l | map('string')) | tojson
namespace(a=1) | tojson
1.0 | tojson
1e16 | tojson
1e-7 | tojson
('inf' | float) | tojson
('nan' | float) | tojson
[-0.0, 1e100] | tojson
none | tojson
true | tojson
'a' | tojson
('a' | safe) | tojson
d | tojson(foo=1)
d.keys() | tojson
people | tojson | length
m | tojson | upper
# Tests
1 is odd
2 is even
3.0 is odd
'a' is odd
6 is divisibleby 3
6 is divisibleby(4)
6 is divisibleby
6 is divisibleby 0
i is defined
i is undefined
i is not defined
missing is defined
missing is not defined
none is none
nil is none
0 is none
true is boolean
1 is boolean
true is true
1 is true
false is false
0 is false
1 is integer
true is integer
1.0 is integer
1.0 is float
1 is float
1 is number
true is number
1.5 is number
'1' is number
'a' is string
1 is string
('a' | safe) is string
{} is mapping
[] is mapping
[] is sequence
() is sequence
'a' is sequence
{} is sequence
1 is sequence
range(3) is sequence
d.items() is sequence
(l | map('string')) is sequence
[] is iterable
'a' is iterable
none is iterable
1 is iterable
{} is iterable
(l | map('string')) is iterable
range is callable
s.upper is callable
1 is callable
d.items is callable
'abc' is lower
'ABC' is upper
'aBc' is lower
1 is lower
'A1' is upper
1 is eq 1
1 is eq(1.0)
1 is equalto 2
1 is ne 2
1 is lt 2
1 is le 1
2 is gt 1
2 is ge 3
1 is lessthan 2
2 is greaterthan 1
1 is in [1, 2]
1 is not in [2]
'a' is in 'abc'
1 is sameas 1
none is sameas none
true is sameas true
1 is sameas true
'a' is sameas 'b'
'upper' is filter
'nope' is filter
'odd' is test
'nope' is test
1 is string or 1 is number
1 is number and 2 is number
not 1 is string
1 is not string is number
'a' is string ~ 'b'
i is odd and i is not even
(1 is odd) ~ 'x'
missing is defined and missing.x
1 is none if 1
s is string if true else 1
'x' if s is string else 'y'
# Functions
joiner()
cycler(1, 2).next()
cycler()
cycler(1, 2).current
raise_exception('no')
raise_exception()
raise_exception(1)
strftime_now('%d %b %Y')
strftime_now('%Y-%m-%d')
strftime_now()
range(3)()
s()
d()
none()
nofunction()
dict is callable
namespace is callable
range(*[1, 3]) | list
dict(a=1, a=2)
dict(a=1, **{'a': 2})
dict(**1)
dict(*1)
s.replace(*['l', 'L'])
s.split(**{'sep': ','})
s.split(sep=',', maxsplit=1, foo=1)
'%s' | format(*['a'])
loop is defined
# Errors of the parser
1 +
(1
1)
[1
{'a' 1}
a b
a.
a[
a[]
a..b
f(a=1, 2)
f(*a, 1)
f(**a, b=1)
f(,)
'a
1 is
1 |
|upper
not
1 not 2
a if
@
a ? b
$x
!x
a = 1
a; b
a && b
lambda x: x
x := 1
`a`
[x for x in l]
{1, 2}
1 <> 2
a is is b
d[1:2, 3]
s[1:2:3:4]
none.x = 1
"""

TEMPLATES = [
    # Loops.
    "{% for x in l %}{{ x }}{% if not loop.last %},{% endif %}{% endfor %}",
    "{% for x in [] %}a{% else %}empty{% endfor %}",
    "{% for x in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.depth }}{{ loop.depth0 }} {% endfor %}",
    "{% for x in l %}{{ loop.previtem }}<{{ x }}>{{ loop.nextitem }};{% endfor %}",
    "{% for x in l %}{{ loop.previtem is defined }}{{ loop.nextitem is defined }}{% endfor %}",
    "{% for x in l %}{{ loop.cycle('a', 'b') }}{% endfor %}",
    "{% for x in l %}{{ loop.cycle() }}{% endfor %}",
    "{% for x in [1, 1, 2, 2, 1] %}{{ loop.changed(x) }} {% endfor %}",
    "{% for x in [1, 2, 3, 4] if x is odd %}{{ x }}{{ loop.index }}{{ loop.last }}{{ loop.length }}{% endfor %}",
    "{% for x in [2, 4] if x is odd %}a{% else %}none{% endfor %}",
    "{% for x in [1, 2] if x is odd recursive %}{{ x }}{% endfor %}",
    "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}",
    "{% for k, v in d | dictsort %}{{ k }}={{ v }};{% endfor %}",
    "{% for k in d %}{{ k }}{% endfor %}",
    "{% for a, (b, c) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}",
    "{% for a, b in [1] %}{% endfor %}",
    "{% for a, b in [(1, 2, 3)] %}{% endfor %}",
    "{% for a, b in ['xy'] %}{{ b }}{{ a }}{% endfor %}",
    "{% for c in 'héy' %}{{ c }}.{% endfor %}",
    "{% for x in 5 %}{% endfor %}",
    "{% for x in none %}{% endfor %}",
    "{% for x in missing %}{% else %}nothing{% endfor %}",
    "{% for x in l %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% endfor %}",
    "{% for x in l %}{% if x == 1 %}{% break %}{% endif %}{{ x }}{% endfor %}",
    "{% for x in l %}{% break %}{% else %}else{% endfor %}",
    "{% for x in l %}{% continue %}{% else %}else{% endfor %}",
    "{% for x in l %}{{ x }}{% break %}{% endfor %}{{ x }}",
    "{% break %}",
    "{% for x in l %}{% macro f() %}{% break %}{% endmacro %}{% endfor %}",
    "{% for x in l %}{% set y %}{% if x == 1 %}{% continue %}{% endif %}a{% endset %}{{ y }}{{ x }}{% endfor %}",
    "{% for n in tree recursive %}{{ n.v }}{% if n.c %}({{ loop(n.c) }}){% endif %}{% endfor %}",
    "{% for n in tree recursive %}{{ loop.depth }}{{ n.v }}{{ loop.last }}{{ loop(n.c) }}{% else %}e{% endfor %}",
    "{% for n in tree %}{{ loop(n.c) }}{% endfor %}",
    "{% for x in l %}{% for y in l %}{{ loop.index }}{% endfor %}{{ loop.index }};{% endfor %}",
    "{% for x in l %}{% set outer = loop %}{% for y in [1, 2] %}{{ outer.index }}{{ loop.index }} {% endfor %}{% endfor %}",
    "{% for x in l | map('string') %}{{ loop.length }}{{ x }}{{ loop.last }}{% endfor %}",
    "{% for x in l | select('odd') %}{{ loop.index }}/{{ loop.length }}{% endfor %}",
    "{% set g = l | map('string') %}{% for x in g %}{{ x }}{% endfor %}|{% for x in g %}{{ x }}{% endfor %}",
    "{% set g = l | map('string') %}{{ g | first }}{{ g | list }}{{ g | list }}",
    "{% set g = [1] | select %}{{ 'yes' if g else 'no' }}{{ 'yes' if [] | select else 'no' }}",
    "{% for x in l %}{{ loop }}{% endfor %}",
    "{% for loop in l %}{% endfor %}",
    "{% for x in l %}{% set loop = 1 %}{% endfor %}",
    "{% for x in range(3) %}{{ x }}{% endfor %}",
    "{% for x in l if loop.index > 1 %}{{ x }}{% endfor %}",
    "{% for x in l[::-1] %}{{ x }}{% endfor %}{% for x in l | reverse %}{{ x }}{% endfor %}",
    "{% for g in people[:3] | groupby('age') %}{{ g.grouper }}:{% for p in g.list %}{{ p.name }}{% endfor %};{% endfor %}",
    "{% for a, b in people[:3] | groupby('age') %}{{ a }}:{{ b | length }};{% endfor %}",
    "{% for row in l | batch(2) %}{{ row }}{% endfor %}",
    "{% set ns = namespace(go=true) %}{% for x in [1, 2, 3] if ns.go %}{{ x }}{% if x == 2 %}{% set ns.go = false %}{% endif %}{% endfor %}",
    "{% for x in 1, 2, 3 %}{{ x }}{% endfor %}",
    "{% for x, in [(1,)] %}{{ x }}{% endfor %}",
    "{% for x.y in l %}{% endfor %}",
    "{% for x in l: %}{{ x }}{% endfor %}",
    "{% for x in [{'a': 1}] %}{{ x.a }}{{ x['b'] }}{% endfor %}",
    "{% for i in range(3) %}{% for j in range(i) %}{{ i }}{{ j }} {% endfor %}{% endfor %}",
    # Variables and scopes.
    "{% set x = 1 %}{{ x }}",
    "{% set x, y = 1, 2 %}{{ x }}{{ y }}",
    "{% set (x, y) = [1, 2] %}{{ x }}{{ y }}",
    "{% set x = 1, 2 %}{{ x }}",
    "{% set x, y = 1 %}",
    "{% set x = 1 %}{% for y in l %}{% set x = x + 1 %}{{ x }}{% endfor %}{{ x }}",
    "{% for y in l %}{% set x = y %}{% endfor %}{{ x is defined }}",
    "{% for y in l %}{{ x is defined }}{% set x = y %}{{ x }}{% endfor %}",
    "{% if true %}{% set x = 1 %}{% endif %}{{ x }}",
    "{% if false %}{% set x = 1 %}{% endif %}{{ x is defined }}",
    "{% if false %}{% set i = 1 %}{% endif %}{{ i }}",
    "{{ i }}{% set i = 1 %}{{ i }}",
    "{% for x in [1] %}{{ i }}{% endfor %}{% set i = 1 %}{{ i }}",
    "{% for x in [1] %}{% if false %}{% set i = 1 %}{% endif %}{{ i }}{% endfor %}",
    "{% for x in [1, 2] %}{% if x == 1 %}{% set i = 1 %}{% endif %}{{ i }}{% endfor %}{{ i }}",
    "{% set i = i + 1 %}{{ i }}",
    "{% set ns = namespace(x=0) %}{% for y in l %}{% set ns.x = ns.x + y %}{% endfor %}{{ ns.x }}",
    "{% set ns = namespace() %}{% set ns.a = 1 %}{% set ns.b, ns.c = 2, 3 %}{{ ns.a }}{{ ns.b }}{{ ns.c }}{{ ns }}",
    "{% set d.a = 1 %}",
    "{% set missing.a = 1 %}",
    "{% set ns = namespace(a=[1]) %}{% set ns.a = ns.a + [2] %}{{ ns.a }}",
    "{% set ns = namespace() %}{% set ns._a = 1 %}",
    "{% set ns.x = 1 %}{% set ns = namespace() %}",
    "{% set a = namespace(v=1) %}{% set b = a %}{% set b.v = 2 %}{{ a.v }}{{ a == b }}{{ a == namespace(v=2) }}",
    "{% set x %}a{{ i }}b{% endset %}{{ x }}{{ x | length }}",
    "{% set x | upper %}abc{% endset %}{{ x }}",
    "{% set x | replace('a', 'b') | upper %}abca{% endset %}{{ x }}",
    "{% set x %}{% set y = 1 %}{% endset %}{{ y is defined }}",
    "{% set ns = namespace() %}{% set ns.x %}abc{% endset %}{{ ns.x }}",
    "{% with %}{% set x = 1 %}{{ x }}{% endwith %}{{ x is defined }}",
    "{% with a = 1, b = 2 %}{{ a }}{{ b }}{% endwith %}{{ a is defined }}",
    "{% with i = i + 1, j = i %}{{ i }}{{ j }}{% endwith %}{{ i }}",
    "{% with a, b = (1, 2) %}{{ a }}{{ b }}{% endwith %}",
    "{% set true = 1 %}",
    "{% set 1 = 1 %}",
    "{% set x %}",
    "{% set x = %}",
    "{% set = 1 %}",
    "{% if 1 %}a{% elif missing.x %}b{% else %}c{% endif %}",
    "{% if 0 %}a{% elif '' %}b{% elif [0] %}c{% else %}d{% endif %}",
    "{% if x is defined %}a{% else %}b{% endif %}",
    "{% if not (1 == 2) and 'a' in 'abc' %}yes{% endif %}",
    "{% if 1, %}tuple{% endif %}",
    "{% if %}{% endif %}",
    "{% if 1 %}",
    "{% endif %}",
    "{% if 1 %}{% endfor %}",
    "{% else %}",
    "{% if false %}{{ 'x' | nofilter }}{% endif %}ok",
    "{% if true %}{{ 'x' | nofilter }}{% endif %}",
    "{% if true %}{% for x in l %}{{ x | nofilter }}{% endfor %}{% endif %}",
    "{% if 'nope' is filter %}{{ 1 | nope }}{% else %}no{% endif %}",
    # Macros and calls.
    "{% macro f(x, y=2) %}[{{ x }}{{ y }}]{% endmacro %}{{ f(1) }}{{ f(1, 3) }}{{ f(y=5, x=4) }}{{ f() }}",
    "{% macro f(x) %}{% endmacro %}{{ f(1, 2) }}",
    "{% macro f(x) %}{% endmacro %}{{ f(z=2) }}",
    "{% macro f(x) %}{{ x is defined }}{% endmacro %}{{ f() }}",
    "{% macro f(x) %}{{ x.y }}{% endmacro %}{{ f() }}",
    "{% macro f() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ f(1, 2, a=3) }}",
    "{% macro f(a) %}{{ a }}{{ varargs }}{% endmacro %}{{ f(1, 2, 3) }}",
    "{% macro f(a, b=a) %}{{ a }}{{ b }}{% endmacro %}{{ f(1) }}",
    "{% macro f(a=b, b=1) %}{{ a }}{{ b }}{% endmacro %}{{ f() }}",
    "{% macro f(a=1, b) %}{% endmacro %}",
    "{% macro f(a, a) %}{% endmacro %}",
    "{% macro f() %}{{ i }}{% endmacro %}{{ f() }}{% set i = 1 %}{{ f() }}",
    "{% set x = 1 %}{% macro f() %}{{ x }}{% set x = 2 %}{{ x }}{% endmacro %}{{ f() }}{{ x }}",
    "{% macro f(n) %}{{ n }}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(3) }}",
    "{% macro f() %}a{% endmacro %}{% macro g() %}{{ f() }}b{% endmacro %}{{ g() | upper }}",
    "{{ f() }}{% macro f() %}a{% endmacro %}",
    "{% macro outer() %}{% macro inner() %}i{% endmacro %}{{ inner() }}{% endmacro %}{{ outer() }}{{ inner is defined }}",
    "{% for x in l %}{% macro f() %}{{ x }}{% endmacro %}{{ f() }}{% endfor %}",
    "{% set ns = namespace() %}{% for x in l %}{% macro f() %}{{ x }}{% endmacro %}{% set ns.f = f %}{% endfor %}{{ ns.f is callable }}",
    "{% macro f() %}{% endmacro %}{{ f }}{{ f.name }}",
    "{% macro f() -%}  a  {%- endmacro %}[{{ f() }}]",
    "{% macro f(x) %}{{ caller() }}{{ x }}{% endmacro %}{% call f(1) %}body{{ i }}{% endcall %}",
    "{% macro f() %}{{ caller('a', b=2) }}{% endmacro %}{% call(x, b) f() %}{{ x }}{{ b }}{% endcall %}",
    "{% macro f() %}{{ caller is defined }}{% endmacro %}{{ f() }}",
    "{% macro f() %}{{ caller() }}{% endmacro %}{{ f() }}",
    "{% macro f() %}x{% endmacro %}{% call f() %}a{% endcall %}",
    "{% macro f() %}{% for x in [1, 2] %}{{ caller(x) }}{% endfor %}{% endmacro %}{% call(x) f() %}<{{ x }}>{% endcall %}",
    "{% macro f(caller=none) %}{{ caller }}{% endmacro %}{{ f() }}",
    "{% macro f(caller) %}{{ caller() }}{% endmacro %}",
    "{% call 1 %}{% endcall %}",
    "{% macro f(x) %}{{ x }}{% endmacro %}{{ l | map('string') | join }}{{ f(*[1]) }}{{ f(**{'x': 2}) }}",
    "{% macro f(x) %}{{ x }}{% endmacro %}{% set g = f %}{{ g('a') }}",
    "{% macro m(x) %}{{ loop is defined }}{% endmacro %}{% for a in [1] %}{{ m(a) }}{% endfor %}",
    "{% macro f() %}{{ f }}{% endmacro %}{{ f() }}",
    "{% macro f(a, b) %}{{ a }}-{{ b }}{% endmacro %}{{ f(b=1, *[2]) }}",
    "{% filter upper %}abc{{ s }}{% endfilter %}",
    "{% filter replace('a', 'b') | upper %}aaa{% endfilter %}",
    "{% filter nofilter %}a{% endfilter %}",
    "{% filter trim %}  a  {% endfilter %}|",
    "{% filter upper %}{% set x = 1 %}{{ x }}{% endfilter %}{{ x is defined }}",
    "{% filter indent(2) %}a\nb{% endfilter %}",
    "{% print 1, 2 %}",
    "{% print 'a' %}",
    "{% do 1 %}",
    "{% include 'a' %}",
    "{% extends 'a' %}",
    "{% import 'a' as b %}",
    "{% from 'a' import b %}",
    "{% nope %}",
    "{% trans %}a{% endtrans %}",
    "{% raw %}{{ a }}{% b %}{# c #}{% endraw %}",
    "a {%- raw -%} b {%- endraw -%} c",
    "  {% raw %}\n a\n  {% endraw %}\nb",
    "{% raw %}",
    "{%raw%}{{{%endraw%}",
    "{% raw +%}{% endraw %}",
    # Joiners, cyclers.
    "{% set j = joiner(', ') %}{% for x in l %}{{ j() }}{{ x }}{% endfor %}",
    "{% set j = joiner() %}{{ j() }}a{{ j() }}b",
    "{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}{{ c.current }}{{ c.reset() }}{{ c.current }}",
    # Generation blocks.
    "a{% generation %}b{{ i }}{% endgeneration %}c",
    "{% for x in l %}{% generation %}{{ x }}{% set y = 1 %}{% endgeneration %}{{ y is defined }}{% endfor %}",
    "{% generation %}{% set x = 1 %}{% endgeneration %}{{ x is defined }}",
    "  {%- generation -%}  a  {%- endgeneration -%}  b",
    "{% generation %}a",
    # White space.
    "a\n  {% if true %}\n  b\n  {% endif %}\nc",
    "a\n  {%- if true -%}\n  b\n  {%- endif -%}\nc",
    "a\n  {%+ if true %}\n  b\n  {%+ endif +%}\nc",
    "  {% if true %}x{% endif %}  \n",
    "x  {% if true %}y{% endif %}  z",
    "{% if true %}  {% if true %}a{% endif %}  {% endif %}",
    "{{ 'a' }}  \n  {{ 'b' }}\n",
    "{{- 'a' -}}  \n  {{- 'b' }}",
    "  {{ 'a' }}  {{- 'b' -}}  c",
    "{{+ 1 }}",
    "{{ 1 +}}",
    "a {# b #} c",
    "a\n  {# b #}\n  c",
    "a {#- b -#} c",
    "a\n {#+ b +#}\n c",
    "{# a {{ b }} {% c %} #}d",
    "{# a",
    "{#-#}a",
    "{##}a\n",
    "a\n",
    "a\n\n",
    "\n",
    "",
    "\n\na",
    "a\r\nb\rc\n",
    "{% if true %}\r\nb\r{% endif %}\r\nc",
    "{{ 'a\r\nb' }}",
    "{% if true %}\n\na{% endif %}",
    "{% set x = 1 %}\n{% set y = 2 %}\n{{ x }}{{ y }}\n",
    "\t {% if 1 %}a{% endif %}",
    "\u00a0{% if 1 %}a{% endif %}\u2003{%- if 1 %}b{% endif %}",
    "a{% if 1 %} {% endif %}\n  {% if 1 %}b{% endif %}",
    "{{ 1 }}\n{%- if 1 %}\n b{% endif %}",
    "{% if 1 -%}   a{% endif %}",
    "{%if 1%}a{%endif%}",
    "{%- set x = 1 %}\n\n{{ x }}",
    "   {#- c #}   {% if 1 %}a{% endif %}",
    "{% for x in l %}\n  {{ x }}\n{% endfor %}\n",
    "{% for x in l -%}\n  {{ x }}\n{%- endfor %}\n",
    "{{ '{{' }}{{ '}}' }}{{ \"%}\" }}",
    "{{ {'a': {'b': 1}}['a']['b'] }}",
    "{{ {'a': {}}}}",
    "{{ { } }}",
    "{ { a } }",
    "{",
    "}}",
    "%}",
    "{{",
    "{%",
    "{{ }}",
    "{% %}",
    "{{ 'a' }",
    "{{ (1 }} ) }}",
    "{% if (1 %}) %}a{% endif %}",
    "{{ 1 }}}",
    "#} {{ 1 }}",
    "{{ [1,\n 2][0]\n }}\n",
    # Things that templates can't do.
    "{{ ''.__class__.__mro__ }}",
    "{{ l.__class__ }}",
    "{{ range.__call__ }}",
    "{{ namespace.__init__ }}",
    "{{ ().__class__.__bases__[0].__subclasses__() }}",
    "{% set x = l.append(4) %}{{ l }}",
    "{{ '{0.__class__}'.format(1) }}",
    # Markup.
    "{% set x = '<' | e %}{{ x }}{{ x ~ '<' }}{{ x + '<' }}{{ x * 2 }}{{ [x] }}{{ x[0] }}{{ x.upper() }}",
    "{{ ('<' | safe).strip() is escaped }}{{ ('<' | safe) | string is escaped }}{{ ('<' | safe) ~ '' is escaped }}",
    "{{ ['<' | e, '<'] | join('<') }}",
]

CHAT_TEMPLATES = {
    "chatml": """{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + (message['content'] if message['content'] is string else message['content'] | map(attribute='text') | select('string') | join) + '<|im_end|>' + '\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}""",
    "llama3": """{{- bos_token }}
{%- if custom_tools is defined %}
    {%- set tools = custom_tools %}
{%- endif %}
{%- if not tools_in_user_message is defined %}
    {%- set tools_in_user_message = true %}
{%- endif %}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set date_string = "26 Jul 2024" %}
    {%- endif %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}
{#- The system's words come first. #}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\n\n" }}
{%- if tools is not none %}
    {{- "Environment: ipython\n" }}
{%- endif %}
{{- "Today Date: " + date_string + "\n\n" }}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- if tools_in_user_message and not tools is none %}
    {%- if messages | length != 0 %}
        {%- set first_user_message = messages[0]['content']|trim %}
        {%- set messages = messages[1:] %}
    {%- else %}
        {{- raise_exception("Cannot put tools in the first user message when there's no first user message!") }}
    {%- endif %}
    {{- '<|start_header_id|>user<|end_header_id|>\n\n' -}}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\n\n" }}
    {%- endfor %}
    {{- first_user_message + "<|eot_id|>"}}
{%- endif %}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'}}
        {%- if message['content'] is string %}{{ message['content'] | trim }}{% else %}{% for part in message.content %}{% if part.type == 'image' %}<|image|>{% elif part.type == 'text' %}{{ part.text }}{% endif %}{% endfor %}{% endif %}
        {{- '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("This model only supports single tool-calls at once!") }}
        {%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' -}}
        {{- '{"name": "' + tool_call.name + '", ' }}
        {{- '"parameters": ' }}
        {{- tool_call.arguments | tojson }}
        {{- "}" }}
        {{- "<|eot_id|>" }}
    {%- elif message.role == "tool" or message.role == "ipython" %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\n\n" }}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %}
""",
    "qwen3": """{%- if tools %}
    {{- '<|im_start|>system\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\n\n' }}
    {%- endif %}
    {{- "# Tools\n\n<tools>" }}
    {%- for tool in tools %}
        {{- "\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\n</tools><|im_end|>\n" }}
{%- else %}
    {%- if messages[0].role == 'system' %}
        {{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}
    {%- endif %}
{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}
        {%- set content = message.content %}
    {%- else %}
        {%- set content = '' %}
    {%- endif %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\n' + content + '<|im_end|>' + '\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning_content = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning_content = message.reasoning_content %}
        {%- else %}
            {%- if '</think>' in content %}
                {%- set reasoning_content = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
                {%- set content = content.split('</think>')[-1].lstrip('\n') %}
            {%- endif %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index %}
            {%- if loop.last or (not loop.last and reasoning_content) %}
                {{- '<|im_start|>' + message.role + '\n<think>\n' + reasoning_content.strip('\n') + '\n</think>\n\n' + content.lstrip('\n') }}
            {%- else %}
                {{- '<|im_start|>' + message.role + '\n' + content }}
            {%- endif %}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\n' + content }}
        {%- endif %}
        {%- if message.tool_calls %}
            {%- for tool_call in message.tool_calls %}
                {%- if (loop.first and content) or (not loop.first) %}
                    {{- '\n' }}
                {%- endif %}
                {%- if tool_call.function %}
                    {%- set tool_call = tool_call.function %}
                {%- endif %}
                {{- '<tool_call>\n{"name": "' }}
                {{- tool_call.name }}
                {{- '", "arguments": ' }}
                {%- if tool_call.arguments is string %}
                    {{- tool_call.arguments }}
                {%- else %}
                    {{- tool_call.arguments | tojson }}
                {%- endif %}
                {{- '}\n</tool_call>' }}
            {%- endfor %}
        {%- endif %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\n<tool_response>\n' }}
        {{- content }}
        {{- '\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\n\n</think>\n\n' }}
    {%- endif %}
{%- endif %}""",
    "gemma": """{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- if messages[0]['content'] is string -%}
        {%- set first_user_prefix = messages[0]['content'] + '\n\n' -%}
    {%- else -%}
        {%- set first_user_prefix = messages[0]['content'][0]['text'] + '\n\n' -%}
    {%- endif -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set first_user_prefix = "" -%}
    {%- set loop_messages = messages -%}
{%- endif -%}
{%- for message in loop_messages -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) and message.role != 'tool' and strict is defined -%}
        {{ raise_exception("Conversation roles must alternate user/assistant/user/assistant/...") }}
    {%- endif -%}
    {%- if (message['role'] == 'assistant') -%}
        {%- set role = "model" -%}
    {%- else -%}
        {%- set role = message['role'] -%}
    {%- endif -%}
    {{ '<start_of_turn>' + role + '\n' + (first_user_prefix if loop.first else "") }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}
            {%- if item['type'] == 'image' -%}
                {{ '<start_of_image>' }}
            {%- elif item['type'] == 'text' -%}
                {{ item['text'] | trim }}
            {%- endif -%}
        {%- endfor -%}
    {%- else -%}
        {{ raise_exception("Invalid content type") }}
    {%- endif -%}
    {{ '<end_of_turn>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{'<start_of_turn>model\n'}}
{%- endif -%}
""",
    "mistral_v7": """{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- elif tools is not none %}
    {%- set parallel_tool_prompt = "You are a helpful assistant." %}
{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}
{%- set ns = namespace(index=0) %}
{%- for message in loop_messages %}
    {%- if not (message.role == "tool" or (message.tool_calls is defined and message.tool_calls is not none)) %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if tools is not none and (message == user_messages[-1]) %}
            {{- "[AVAILABLE_TOOLS] [" }}
            {%- for tool in tools %}
                {%- set tool = tool.function %}
                {{- '{"type": "function", "function": {' }}
                {%- for key, val in tool.items() if key != "return" %}
                    {%- if val is string %}
                        {{- '"' + key + '": "' + val + '"' }}
                    {%- else %}
                        {{- '"' + key + '": ' + val|tojson }}
                    {%- endif %}
                    {%- if not loop.last %}
                        {{- ", " }}
                    {%- endif %}
                {%- endfor %}
                {{- "}}" }}
                {%- if not loop.last %}
                    {{- ", " }}
                {%- else %}
                    {{- "]" }}
                {%- endif %}
            {%- endfor %}
            {{- "[/AVAILABLE_TOOLS]" }}
        {%- endif %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\n\n" ~ message["content"] + "[/INST]" if message["content"] is string else "[INST] " ~ message["content"][0].text ~ "[/INST]" }}
        {%- else %}
            {{- "[INST] " ~ message["content"] ~ "[/INST]" }}
        {%- endif %}
    {%- elif message["role"] == "tool_calls" or message.tool_calls is defined %}
        {%- if message.tool_calls is defined %}
            {%- set tool_calls = message.tool_calls %}
        {%- else %}
            {%- set tool_calls = message.content %}
        {%- endif %}
        {{- "[TOOL_CALLS] [" }}
        {%- for tool_call in tool_calls %}
            {%- set out = tool_call.function|tojson %}
            {{- out[:-1] }}
            {%- if not tool_call.id is defined or tool_call.id|length != 9 %}
                {{- raise_exception("Tool call IDs should be alphanumeric strings with length 9!") }}
            {%- endif %}
            {{- ', "id": "' + tool_call.id + '"}' }}
            {%- if not loop.last %}
                {{- ", " }}
            {%- else %}
                {{- "]" + eos_token }}
            {%- endif %}
        {%- endfor %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"] + eos_token }}
    {%- elif message["role"] == "tool_results" or message["role"] == "tool" %}
        {%- if message.content is defined and message.content.content is defined %}
            {%- set content = message.content.content %}
        {%- else %}
            {%- set content = message.content %}
        {%- endif %}
        {{- '[TOOL_RESULTS] {"content": ' + content|string + ", " }}
        {{- '"call_id": "' + message.tool_call_id + '"}[/TOOL_RESULTS]' }}
    {%- else %}
        {{- raise_exception("Only user and assistant roles are supported!") }}
    {%- endif %}
{%- endfor %}
""",
    "deepseek_r1": """{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}{% set ns = namespace(is_first=false, is_tool=false, is_output_first=true, system_prompt='') %}{%- for message in messages %}{%- if message['role'] == 'system' %}{% set ns.system_prompt = message['content'] %}{%- endif %}{%- endfor %}{{bos_token}}{{ns.system_prompt}}{%- for message in messages %}{%- if message['role'] == 'user' %}{%- set ns.is_tool = false -%}{{'<｜User｜>' ~ message['content']}}{%- endif %}{%- if message['role'] == 'assistant' and message['tool_calls'] is defined and message['tool_calls'] is not none %}{%- set ns.is_tool = false -%}{%- for tool in message['tool_calls']%}{%- if not ns.is_first %}{{'<｜Assistant｜><｜tool▁calls▁begin｜>' + tool['type'] + '<｜tool▁sep｜>' + tool['function']['name'] + '\\n' + '```json' + '\\n' + tool['function']['arguments'] | string + '\\n' + '```'}}{%- set ns.is_first = true -%}{%- else %}{{'\\n' + '<｜tool▁call▁begin｜>'}}{%- endif %}{%- endfor %}{%- endif %}{%- if message['role'] == 'assistant' and message['content'] is not none and not message['tool_calls'] %}{%- if ns.is_tool %}{{'<｜tool▁outputs▁end｜>' + message['content'] + '<｜end▁of▁sentence｜>'}}{%- set ns.is_tool = false -%}{%- else %}{% set content = message['content'] %}{% if '</think>' in content %}{% set content = content.split('</think>')[-1] %}{% endif %}{{'<｜Assistant｜>' + content + '<｜end▁of▁sentence｜>'}}{%- endif %}{%- endif %}{%- if message['role'] == 'tool' %}{%- set ns.is_tool = true -%}{%- if ns.is_output_first %}{{'<｜tool▁outputs▁begin｜>' + message['content']}}{%- set ns.is_output_first = false %}{%- else %}{{'\\n' + message['content']}}{%- endif %}{%- endif %}{%- endfor -%}{% if ns.is_tool %}{{'<｜tool▁outputs▁end｜>'}}{% endif %}{% if add_generation_prompt and not ns.is_tool %}{{'<｜Assistant｜><think>\\n'}}{% endif %}""",
    "harmony": """{%- macro render_type(param_spec, is_nullable=false) -%}
    {%- if param_spec.type == "array" -%}
        {%- if param_spec['items'] -%}
            {%- if param_spec['items']['type'] in ["number", "integer"] -%}
                {{- "number[]" }}
            {%- else -%}
                {%- set inner_type = render_type(param_spec['items']) -%}
                {{- inner_type + "[]" }}
            {%- endif -%}
        {%- else -%}
            {{- "any[]" }}
        {%- endif -%}
    {%- elif param_spec.type is defined and param_spec.type is iterable and param_spec.type is not string and param_spec.type is not mapping and param_spec.type[0] is defined -%}
        {%- if param_spec.type | length > 1 -%}
            {{- param_spec.type | join(" | ") }}
        {%- else -%}
            {{- param_spec.type[0] }}
        {%- endif -%}
    {%- elif param_spec.type == "string" -%}
        {%- if param_spec.enum -%}
            {{- '"' + param_spec.enum|join('" | "') + '"' -}}
        {%- else -%}
            {{- "string" }}
        {%- endif -%}
    {%- elif param_spec.type == "number" -%}
        {{- "number" }}
    {%- else -%}
        {{- "any" }}
    {%- endif -%}
{%- endmacro -%}
{%- macro render_tools(name, tools) -%}
    {{- "## " + name + "\n\n" }}
    {{- "namespace " + name + " {\n\n" }}
    {%- for tool in tools %}
        {%- set tool = tool.function %}
        {{- "// " + tool.description + "\n" }}
        {{- "type "+ tool.name + " = " }}
        {%- if tool.parameters and tool.parameters.properties %}
            {{- "(_: {\n" }}
            {%- for param_name, param_spec in tool.parameters.properties.items() %}
                {%- if param_spec.description %}
                    {{- "// " + param_spec.description + "\n" }}
                {%- endif %}
                {{- param_name }}
                {%- if param_name not in (tool.parameters.required or []) -%}
                    {{- "?" }}
                {%- endif -%}
                {{- ": " }}
                {{- render_type(param_spec) }}
                {%- if param_spec.default is defined -%}
                    {%- if param_spec.enum %}
                        {{- ", // default: " + param_spec.default }}
                    {%- else %}
                        {{- ", // default: " + param_spec.default|tojson }}
                    {%- endif %}
                {%- endif -%}
                {%- if not loop.last %}
                    {{- ",\n" }}
                {%- else %}
                    {{- "\n" }}
                {%- endif -%}
            {%- endfor %}
            {{- "}) => any;\n\n" }}
        {%- else -%}
            {{- "() => any;\n\n" }}
        {%- endif -%}
    {%- endfor %}
    {{- "} // namespace " + name }}
{%- endmacro -%}
{%- macro build_system_message() -%}
    {%- if model_identity is not defined %}
        {%- set model_identity = "You are a model." %}
    {%- endif %}
    {{- model_identity + "\n" }}
    {{- "Current date: " + strftime_now("%Y-%m-%d") + "\n\n" }}
    {%- if reasoning_effort is not defined %}
        {%- set reasoning_effort = "medium" %}
    {%- endif %}
    {{- "Reasoning: " + reasoning_effort + "\n\n" }}
    {{- "# Valid channels: analysis, commentary, final." }}
{%- endmacro -%}
{%- set has_builtin_tools = builtin_tools is defined and builtin_tools %}
{{- "<|start|>system<|message|>" }}
{{- build_system_message() }}
{{- "<|end|>" }}
{%- if messages[0].role == "developer" or messages[0].role == "system" %}
    {%- set developer_message = messages[0].content %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set developer_message = "" %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- if developer_message or tools %}
    {{- "<|start|>developer<|message|>" }}
    {%- if developer_message %}
        {{- "# Instructions\n\n" }}
        {{- developer_message }}
    {%- endif %}
    {%- if tools -%}
        {{- "\n\n# Tools\n\n" }}
        {{- render_tools("functions", tools) }}
    {%- endif -%}
    {{- "<|end|>" }}
{%- endif %}
{%- set last_tool_call = namespace(name=none) %}
{%- for message in loop_messages -%}
    {%- if message.role == 'assistant' -%}
        {%- if message.content is string and "<|channel|>analysis<|message|>" in message.content %}
            {{- raise_exception("no") }}
        {%- endif %}
        {%- if "tool_calls" in message %}
            {%- set future_final_message = namespace(found=false) %}
            {%- for future_message in loop_messages[loop.index:] %}
                {%- if future_message.role == 'assistant' and "tool_calls" not in future_message %}
                    {%- set future_final_message.found = true %}
                {%- endif %}
            {%- endfor %}
            {%- set tool_call = message.tool_calls[0] %}
            {%- if tool_call.function %}
                {%- set tool_call = tool_call.function %}
            {%- endif %}
            {%- if message.content and not future_final_message.found %}
                {{- "<|start|>assistant<|channel|>analysis<|message|>" + message.content + "<|end|>" }}
            {%- endif %}
            {{- "<|start|>assistant to=" }}
            {{- "functions." + tool_call.name + "<|channel|>commentary " }}
            {{- (tool_call.content_type if tool_call.content_type is defined else "json") + "<|message|>" }}
            {{- tool_call.arguments|tojson }}
            {{- "<|call|>" }}
            {%- set last_tool_call.name = tool_call.name %}
        {%- elif loop.last and not add_generation_prompt %}
            {{- "<|start|>assistant<|channel|>final<|message|>" + message.content + "<|return|>" }}
        {%- else %}
            {{- "<|start|>assistant<|channel|>final<|message|>" + message.content + "<|end|>" }}
            {%- set last_tool_call.name = none %}
        {%- endif %}
    {%- elif message.role == 'tool' -%}
        {%- if last_tool_call.name is none %}
            {{- raise_exception("Message has tool role, but there was no previous assistant message with a tool call!") }}
        {%- endif %}
        {{- "<|start|>functions." + last_tool_call.name }}
        {{- " to=assistant<|channel|>commentary<|message|>" + message.content|tojson + "<|end|>" }}
    {%- elif message.role == 'user' -%}
        {{- "<|start|>user<|message|>" ~ message.content ~ "<|end|>" }}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
<|start|>assistant
{%- endif -%}""",
    "phi4": """{% for message in messages %}{% if message['role'] == 'system' and tools %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|tool|>' + (tools | string) + '<|/tool|>' + '<|end|>' }}{% else %}{{ '<|' + message['role'] + '|>' ~ message['content'] ~ '<|end|>' }}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% else %}{{ eos_token }}{% endif %}""",
    "granite": """{%- if messages[0]['role'] == 'system' %}
{%- set system_message = messages[0]['content'] %}
{%- set loop_messages = messages[1:] %}
{%- else %}
{%- set system_message = "Today's Date: " + strftime_now('%d %b %Y') + ".\nYou are a model." %}
{%- if tools and documents %}
{%- set system_message = system_message + " Tools and documents." %}
{%- elif tools %}
{%- set system_message = system_message + " Tools." %}
{%- endif %}
{%- if 'citations' in (controls or {}) and documents %}
{%- set system_message = system_message + ' Cite.' %}
{%- endif %}
{%- set loop_messages = messages %}
{%- endif %}
{{- '<|start_of_role|>system<|end_of_role|>' + system_message + '<|end_of_text|>\n' }}
{%- if tools %}
{{- '<|start_of_role|>available_tools<|end_of_role|>' }}
{{- tools | tojson(indent=4) }}
{{- '<|end_of_text|>\n' }}
{%- endif %}
{%- if documents %}
{{- '<|start_of_role|>documents<|end_of_role|>' }}
{%- for document in documents %}
{{- 'Document ' + loop.index0 | string + '\n' }}
{{- document['text'] }}
{%- if not loop.last %}
{{- '\n\n'}}
{%- endif%}
{%- endfor %}
{{- '<|end_of_text|>\n' }}
{%- endif %}
{%- for message in loop_messages %}
{{- '<|start_of_role|>' + message['role'] + '<|end_of_role|>' ~ message['content'] ~ '<|end_of_text|>\n' }}
{%- if loop.last and add_generation_prompt %}
{{- '<|start_of_role|>assistant' }}
{%- if controls %}
{{- ' ' + controls | tojson() }}
{%- endif %}
{{- '<|end_of_role|>' }}
{%- endif %}
{%- endfor %}""",
    "smollm3": """{%- if enable_thinking is not defined -%}
{%- set enable_thinking = true -%}
{%- endif -%}
{%- if enable_thinking -%}
  {%- set reasoning_mode = "/think" -%}
{%- else -%}
  {%- set reasoning_mode = "/no_think" -%}
{%- endif -%}
{{- "<|im_start|>system\n" -}}
{%- if messages[0].role == "system" -%}
  {%- set system_message = messages[0].content -%}
  {%- if "/no_think" in system_message -%}
    {%- set reasoning_mode = "/no_think" -%}
  {%- endif -%}
  {%- set custom_instructions = system_message.replace("/no_think", "").replace("/think", "").rstrip() -%}
{%- endif -%}
{%- if "/system_override" in (system_message or '') -%}
  {{- custom_instructions.replace("/system_override", "").rstrip() -}}
{%- else -%}
  {{- "## Metadata\n\n" -}}
  {%- set today = strftime_now("%d %B %Y") if false else strftime_now("%d %b %Y") -%}
  {{- "Today Date: " ~ today ~ "\n" -}}
  {{- "Reasoning Mode: " + reasoning_mode + "\n\n" -}}
  {%- if custom_instructions -%}
    {{- custom_instructions + "\n\n" -}}
  {%- endif -%}
  {%- if xml_tools or python_tools or tools -%}
    {%- set ns = namespace(xml_tool_string="You may call functions:\n<tools>\n") -%}
    {%- for tool in tools[:] -%}
      {%- set ns.xml_tool_string = ns.xml_tool_string ~ (tool | string) ~ "\n" -%}
    {%- endfor -%}
    {{- ns.xml_tool_string + "</tools>" -}}
  {%- endif -%}
{%- endif -%}
{{- "<|im_end|>\n" -}}
{%- for message in messages -%}
    {%- set content = message.content if message.content is string else "" -%}
    {%- if message.role == "user" -%}
        {{ "<|im_start|>" + message.role + "\n" + content + "<|im_end|>\n" }}
    {%- elif message.role == "assistant" -%}
        {% generation %}
        {%- if reasoning_mode == "/think" -%}
            {{ "<|im_start|>assistant\n" + content.lstrip("\n") + "<|im_end|>\n" }}
        {%- else -%}
            {{ "<|im_start|>assistant\n" + "<think>\n\n</think>\n" + content.lstrip("\n") + "<|im_end|>\n" }}
        {%- endif -%}
        {% endgeneration %}
    {%- elif message.role == "tool" -%}
    {{ "<|im_start|>" + "user\n"  + content + "<|im_end|>\n" }}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{ "<|im_start|>assistant\n" }}
{%- endif -%}
""",
    "command_r": """{%- macro json_to_python_type(json_spec) %}
{%- set basic_type_map = {"string": "str", "number": "float", "integer": "int", "boolean": "bool"} %}
{%- if basic_type_map[json_spec.type] is defined %}
{{- basic_type_map[json_spec.type] }}
{%- elif json_spec.type == "array" %}
{{- "List[" + json_to_python_type(json_spec['items']) + "]"}}
{%- elif json_spec.type == "object" %}
{{- "Dict[str, " + json_to_python_type(json_spec.additionalProperties) + ']'}}
{%- elif json_spec.type is iterable %}
{{- "Union[" }}
{%- for t in json_spec.type %}
{{- json_to_python_type({"type": t}) }}
{%- if not loop.last %}
{{- "," }}
{%- endif %}
{%- endfor %}
{{- "]" }}
{%- else %}
{{- "Any" }}
{%- endif %}
{%- endmacro %}
{%- macro old_tool_parser(tools) %}
{%- for tool in tools %}
{%- if loop.index0 != 0 %}
{{- '\n\n' }}
{%- endif %}
{{- '```python\ndef ' + tool.name + '(' }}
{%- for param_name, param_fields in tool.parameter_definitions|items %}
{%- if loop.index0 != 0 %}
{{- ', '}}
{%- endif %}
{{- param_name + ': ' }}
{%- if not param_fields.required %}
{{- 'Optional[' + json_to_python_type(param_fields) + '] = None'}}
{%- else %}
{{- json_to_python_type(param_fields) }}
{%- endif %}
{%- endfor %}
{{- ') -> List[Dict]:\n    \"\"\"'}}
{{- tool.description }}
{{- '\"\"\"\n    pass\n```' }}
{%- endfor %}
{%- endmacro %}
{%- macro new_tool_parser(tools) %}
{%- for tool in tools %}
{%- if loop.index0 != 0 %}
{{- '\n\n'}}
{%- endif %}
{%- if tool.function is defined %}
{%- set tool = tool.function %}
{%- endif %}
{{-'```python\ndef ' + tool.name + '('}}
{%- for param_name, param_fields in tool.parameters.properties|items %}
{%- if loop.index0 != 0 %}
{{- ', '}}
{%- endif %}
{{-param_name + ": "}}
{%- if not param_name in tool.parameters.required %}
{{-'Optional[' + json_to_python_type(param_fields) + '] = None'}}
{%- else %}
{{- json_to_python_type(param_fields) }}
{%- endif %}
{%- endfor %}
{{- ') -> List[Dict]:' }}
{%- endfor %}
{%- endmacro %}
{{- bos_token }}
{%- if messages[0]['role'] == 'system' %}
  {%- set loop_messages = messages[1:] %}
  {%- set system_message = messages[0]['content'] %}
{%- else %}
  {%- set loop_messages = messages %}
  {%- set system_message = 'A model.' %}
{%- endif %}
{{- '<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>' }}
{{- system_message }}
{{- '\n\n## Available Tools\n' }}
{%- set ns = namespace(new_tools=true) %}
{%- for tool in tools or [] %}
    {%- if tool.parameter_definitions is defined %}
        {%- set ns.new_tools = false %}
    {%- endif %}
{%- endfor %}
{%- if ns.new_tools %}
    {{- new_tool_parser(tools or []) }}
{%- else %}
    {{- old_tool_parser(tools) }}
{%- endif %}
{{- '<|END_OF_TURN_TOKEN|>'}}
{%- for message in loop_messages %}
{%- set content = message['content'] %}
{%- if message.role == 'user' %}
{{- '<|START_OF_TURN_TOKEN|><|USER_TOKEN|>' ~ content ~ '<|END_OF_TURN_TOKEN|>' }}
{%- elif message.role == 'assistant' and message.tool_calls|default(none) is not none %}
{{- '<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>Action: ```json\n[' }}
{%- for tool_call in message.tool_calls %}
{{- '\n    {\n        "tool_name": "' ~ tool_call.function.name ~ '",\n        "parameters": ' ~ tool_call.function.arguments|tojson(indent=4)|indent(8) ~ '\n    }' }}{{ ',' if not loop.last }}
{%- endfor %}
{{- '\n]```<|END_OF_TURN_TOKEN|>' }}
{%- elif message.role == 'assistant' %}
{{- '<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>' ~ content ~ '<|END_OF_TURN_TOKEN|>' }}
{%- elif message.role == 'tool' %}
{{- '<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|><results>\n' }}
{{- 'Document: 0\n' + content.strip() }}
{{- '\n</results><|END_OF_TURN_TOKEN|>' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{-'<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>'}}{%- endif %}
""",
}


def rendered(template, context):
    """The text of a template, or None if Jinja2 raises an error."""
    try:
        compiled = _cached_compile_jinja_template(template)
        compiled.environment.globals["strftime_now"] = NOW.strftime
        # Some filters change a list in place before they raise an error.
        return compiled.render(**copy.deepcopy(context))
    except Exception:
        return None


def golden_cases():
    for line in EXPRESSIONS.replace("\\\n", "\\\0").splitlines():
        line = line.replace("\\\0", "\\\n")
        if line and not line.startswith("#"):
            yield "{{ " + line + " }}", "values"
    for template in TEMPLATES:
        yield template, "values"
    for template in CHAT_TEMPLATES.values():
        yield template, "chat"
        yield template, "short"


ATOMS = [
    "i", "n", "z", "f", "t", "nil", "s", "u", "e", "q", "w", "l", "m", "el", "d", "ed", "people", "missing", "1", "0",
    "-3", "2.5", "1.0", "true", "'a'", "'b c'", "[]", "[1, 2]", "{'a': 1}", "(1, 2)", "range(3)", "none", "'%s'", "','",
    "people[0]", "l[0]", "d.a", "'3'", "' x '", "['b', 'a']", "html",
]  # fmt: skip
FILTERS = [
    "abs", "capitalize", "count", "default({})", "dictsort", "escape", "first", "float", "format({})", "indent({})",
    "int", "int({})", "items|list", "join", "join({})", "last", "length", "list", "lower", "map('string')|list", "max",
    "min", "reject|list", "replace({}, {})", "reverse|list", "round", "round({})", "select|list", "sort", "string",
    "sum", "title", "tojson", "tojson(indent={})", "trim", "trim({})", "truncate({})", "unique|list", "upper",
    "wordcount", "map(attribute={})|list", "selectattr({})|list", "batch({})|list", "slice({})|list", "center({})",
    "groupby({})", "sort(attribute={})", "map('default', {})|list", "urlencode", "striptags", "e|string", "safe",
    "filesizeformat", "join({}, {})", "select('eq', {})|list", "sum(start={})", "d({}, {})", "attr({})",
]  # fmt: skip
METHODS = [
    "upper()", "lower()", "strip()", "strip({})", "split()", "split({})", "rsplit({}, {})", "startswith({})",
    "endswith({})", "find({})", "rfind({}, {})", "count({})", "replace({}, {})", "join({})", "title()", "items()",
    "keys()", "values()", "get({})", "get({}, {})", "index({})", "partition({})", "splitlines()", "zfill({})",
    "center({})", "format({})", "isdigit()", "isalpha()", "copy()", "removeprefix({})", "capitalize()", "rjust({})",
    "name", "a", "items", "islower()", "isspace()", "expandtabs({})", "lstrip({})", "rstrip({})", "swapcase()",
]  # fmt: skip
TESTS = [
    "defined", "none", "string", "number", "mapping", "iterable", "sequence", "odd", "even", "lower", "upper",
    "boolean", "integer", "float", "true", "false", "in {}", "eq {}", "divisibleby {}", "lt {}", "callable", "escaped",
]  # fmt: skip
OPERATORS = ["+", "-", "*", "/", "//", "%", "~", "==", "!=", "<", "<=", ">", ">=", "in", "not in", "and", "or"]


def random_expression(depth):
    def part():
        return random_expression(depth - 1)

    def filled(text):
        while "{}" in text:
            text = text.replace("{}", part(), 1)
        return text

    kind = random.randrange(10) if depth > 0 else 0
    if kind <= 1:
        return random.choice(ATOMS)
    if kind == 2:
        return f"({part()} {random.choice(OPERATORS)} {part()})"
    if kind <= 4:
        return f"({part()})|{filled(random.choice(FILTERS))}"
    if kind == 5:
        return f"({part()}).{filled(random.choice(METHODS))}"
    if kind == 6:
        return f"(({part()}) is {filled(random.choice(TESTS).replace('{}', '({})'))})"
    if kind == 7:
        bounds = [random.choice(["", "0", "1", "-1", "2", "5", part()]) for _ in range(random.choice([1, 2, 2, 3]))]
        return f"({part()})[{':'.join(bounds) or '0'}]"
    if kind == 8:
        return f"({part()} if {part()} else {part()})"
    return random.choice(["[{}, {}]", "({}, {})", "{{}: {}}", "not {}", "-({})"]).replace("{}", part(), 1).replace(
        "{}", part(), 1
    )


def random_cases(count):
    for _ in range(count):
        yield "{{ " + random_expression(3) + " }}", "values"


def main():
    contexts = {"chat": CHAT, "short": SHORT, "values": VALUES}
    if sys.argv[1:2] == ["--random"]:
        random.seed(int(sys.argv[3]))
        cases, path = random_cases(int(sys.argv[2])), Path(sys.argv[4])
    else:
        cases, path = golden_cases(), FOLDER / "golden/templates.json"
    rows = []
    for template, context in cases:
        text = rendered(template, contexts[context])
        # Where a value is in memory differs each time.
        if text is None or " at 0x" not in text:
            rows.append({"template": template, "context": context, "text": text})
    lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    contexts = json.dumps(contexts, ensure_ascii=False)
    path.parent.mkdir(exist_ok=True)
    path.write_text(f'{{"contexts": {contexts},\n"cases": [\n{lines}\n]}}\n')
    print(f"{path}: {len(rows)} cases, {sum(row['text'] is None for row in rows)} of them errors")


if __name__ == "__main__":
    main()
