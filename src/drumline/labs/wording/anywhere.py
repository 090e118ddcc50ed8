"""Words around the sentences, and mistakes that can happen in any lab."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from drumline.labs.language import Said
from drumline.labs.wording.entry import Entry

WORDS: Mapping[str, Said] = MappingProxyType(
    {
        "expected": Said("expected", "预期"),
        "seen": Said("seen", "实际"),
        "belief": Said("the belief behind it", "背后的误解"),
        "read": Said("read", "阅读"),
        "place": Said("drumline/{file}, {symbol}", "drumline/{file} 的 {symbol}"),
        "section": Said("{sheet}, section {number}", "{sheet} 第 {number} 节"),
        "import": Said("{file} can be imported", "{file} 可以导入"),
        "on rank": Said("on rank {rank}: ", "在 rank {rank} 上："),
        "colon": Said(": ", "："),
        "semicolon": Said("; ", "；"),
        "pass": Said("✓", "✓"),
        "wrong": Said("✗", "✗"),
        "to do": Said("to do", "待完成"),
        "not run": Said("not run", "未运行"),
        "printed": Said("the code printed", "代码的输出"),
        "all right": Said(
            "lab {lab}: all {total} checks pass", "实验 {lab}：{total} 项检查全部通过"
        ),
        "summary": Said(
            "lab {lab}: {passed} of {total} checks pass, {wrong} wrong, {todo} to do, "
            "{not_run} not run",
            "实验 {lab}：{total} 项检查中通过 {passed} 项，错误 {wrong} 项，待完成 {todo} 项，"
            "未运行 {not_run} 项",
        ),
        "source": Said("the source to read lies in {folder}", "要阅读的源码在 {folder}"),
        "checking": Said("checking: {title}", "正在检查：{title}"),
        "starting": Said("starting the checks", "正在启动检查"),
        "started": Said("lab {lab}, {title}: {folder}", "实验 {lab}，{title}：{folder}"),
        "next": Said(
            "read TASK.md, fill the holes, then: drumline lab check {folder}",
            "请阅读 TASK.zh.md，填补空缺，然后运行：drumline lab check {folder}",
        ),
        "lab": Said("lab", "实验"),
        "title": Said("title", "题目"),
        "about": Said("what you do", "内容"),
        "needs": Said("checks start", "检查会启动"),
    }
)

_RUNS = Said("the code runs to its end", "代码能够运行结束")

MISTAKES: Mapping[str, Entry] = MappingProxyType(
    {
        "missing-file": Entry(
            expected=Said("a file {file} in the folder", "文件夹中有文件 {file}"),
            seen=Said("there is none", "没有这个文件"),
            belief=Said(
                "Checks find your code by the names of the starter files. Keep them, or make a new "
                "folder by drumline lab start and copy your code into it.",
                "检查程序靠起始文件的文件名找到你的代码。请保留这些名字；或用 drumline lab start "
                "新建一个文件夹，再把代码拷进去。",
            ),
        ),
        "missing-name": Entry(
            expected=Said("{file} has {name}", "{file} 中有 {name}"),
            seen=Said("nothing by that name can be called there", "那里没有这个名字的函数或类"),
            belief=Said(
                "Functions and classes keep the names that the starter file gives them; add as "
                "many of your own as you like.",
                "函数和类要保留起始文件里的名字；你可以随意添加自己的函数和类。",
            ),
        ),
        "raises": Entry(
            expected=_RUNS,
            seen=Said("{kind}: {message} ({where})", "{kind}：{message}（{where}）"),
            belief=Said(
                "An error is not a matter of belief. Call the function yourself, with the smallest "
                "input you can think of, and look at the types and shapes on that line.",
                "报错谈不上误解。请用你能想到的最小输入自己调用这个函数，看看那一行上各个变量的"
                "类型和形状。",
            ),
        ),
        "exits": Entry(
            expected=_RUNS,
            seen=Said(
                "it called sys.exit({code}) ({where})", "它调用了 sys.exit({code})（{where}）"
            ),
            belief=Said(
                "A function of a library returns or raises; ending the process is up to whoever "
                'started it. Keep sys.exit below `if __name__ == "__main__":`.',
                "库里的函数应当返回或抛出异常；结束进程是启动者的事。请把 sys.exit 放在 "
                '`if __name__ == "__main__":` 之下。',
            ),
        ),
        "died": Entry(
            expected=_RUNS,
            seen=Said("the process ended by itself: {how}", "进程自行结束：{how}"),
            belief=Said(
                "os._exit ends the process without a word, and a signal (SIGSEGV, SIGKILL) comes "
                "from native code or from a lack of memory. In a group of ranks all others then "
                "wait for the one that is gone.",
                "os._exit 会让进程无声结束；信号（SIGSEGV、SIGKILL）则来自底层代码或内存不足。"
                "在一组进程里，其余的进程都会一直等待那个已经消失的进程。",
            ),
        ),
        "hangs": Entry(
            expected=_RUNS,
            seen=Said(
                "it had not ended after {timeout_s:g} s, and was ended; it stood at {where}",
                "{timeout_s:g} 秒后仍未结束，已被终止；当时停在 {where}",
            ),
            belief=Said(
                "A call that waits for another rank returns only when that rank makes the matching "
                "call: every rank calls the same collectives in the same order, and of two ranks "
                "that both send first nobody receives. Elsewhere, look for a loop without an end.",
                "等待其他进程的调用，只有在对方做出匹配的调用后才会返回：所有 rank 必须以相同顺序"
                "调用相同的集合通信；两个 rank 若都先发送，就没有人接收。否则请检查是否有死循环。",
            ),
        ),
        "left-processes": Entry(
            expected=Said("no process is left behind", "不遗留任何进程"),
            seen=Said(
                "{count} processes were still running, and were ended",
                "还有 {count} 个进程在运行，已被终止",
            ),
            belief=Said(
                "A process that you start goes on after your function has returned, unless you "
                "wait for it or end it: process.join(), or `with` around it.",
                "你启动的进程在函数返回之后仍会继续运行，除非你等待它或结束它：process.join()，"
                "或者用 `with` 管理它。",
            ),
        ),
        "needs-import": Entry(
            expected=Said("{file} can be imported", "{file} 可以导入"),
            seen=Said("it cannot; see above", "不能导入，见上文"),
            belief=Said("", ""),
        ),
        "out-of-time": Entry(
            expected=Said("all checks end in time", "所有检查按时结束"),
            seen=Said(
                "the checks before took all the time; mend those first, or give a longer --timeout",
                "前面的检查用完了全部时间；请先修正它们，或用 --timeout 给出更长的时间",
            ),
            belief=Said("", ""),
        ),
        "examiner-died": Entry(
            expected=_RUNS,
            seen=Said(
                "the process that checks was ended during this check; the rest was not run",
                "检查进程在这项检查中被终止；其余检查未运行",
            ),
            belief=Said(
                "Code under test ends no processes but those that it started itself.",
                "被测代码只能结束自己启动的进程。",
            ),
        ),
    }
)
