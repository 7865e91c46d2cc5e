// The sidecar that reads a trial's metrics on a cluster, and prints them as the lines that the controller reads in its
// log. It runs beside the trial as a native sidecar: it starts first, and is sent SIGTERM once the trial has ended. Then
// it reads the rest, prints its last line and exits.
//
// The collectors of local trials in controller/runtime/local/collectors print the same lines; tests/fixtures/collectors holds
// for both. Standard library only.
package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"syscall"
	"time"
)

const (
	note      = "# tuner: "
	firstLine = note + "begin" // of a source that is read from its start; controller/core/metrics.py counts again
	lastLine  = note + "end"   // controller/runtime/kubernetes/logs.py waits for it
	interval  = 50 * time.Millisecond
	longest   = 64 << 10 // bytes of a line; the controller ignores the rest
	usageText = `usage: collector file PATH
       collector tensorboard DIRECTORY NAME...
       collector prometheus PORT PATH NAME...
       collector reports ADDRESS
       collector copy PATH
`
)

// A source is polled until the trial has ended.
type source interface {
	// poll prints what is new.
	poll(out *printer)
	// finish prints the rest, after the trial has ended.
	finish(out *printer)
	// rest returns how long to wait before the next poll.
	rest() time.Duration
	// rereads returns whether another process would read again what this one has read.
	rereads() bool
}

func main() {
	runtime.GOMAXPROCS(1) // it has a tenth of a CPU
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGTERM, syscall.SIGINT)
	from, err := parse(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	out := &printer{to: bufio.NewWriterSize(os.Stdout, longest)}
	// A copy is for people: the controller reads the lines elsewhere.
	marked := os.Args[1] != "copy"
	if marked && from.rereads() {
		out.line("") // ends a line that a process before this one has begun
		out.line(firstLine)
	}
	for running := true; running; {
		from.poll(out)
		out.flush()
		select {
		case <-ended:
			running = false
		case <-time.After(from.rest()):
		}
	}
	from.finish(out)
	out.endLine()
	if marked {
		out.line(lastLine)
	}
	out.flush()
}

func parse(words []string) (source, error) {
	switch {
	case len(words) == 2 && (words[0] == "file" || words[0] == "copy"):
		return &tail{path: words[1]}, nil
	case len(words) >= 2 && words[0] == "tensorboard":
		return newEvents(words[1], words[2:]), nil
	case len(words) >= 4 && words[0] == "prometheus":
		if port, err := strconv.Atoi(words[1]); err == nil {
			return &endpoint{port: port, path: words[2], names: words[3:]}, nil
		}
	case len(words) == 2 && words[0] == "reports":
		return newReports(words[1])
	}
	return nil, errors.New(usageText)
}

// A printer prints lines, each cut at its longest length.
type printer struct {
	to      *bufio.Writer
	length  int // of the line that has begun
	printed bool
}

func (p *printer) write(data []byte) {
	for _, each := range data {
		if each == '\n' {
			p.length = 0
		} else if p.length++; p.length > longest {
			continue
		}
		p.to.WriteByte(each)
		p.printed = true
	}
}

func (p *printer) line(text string) {
	p.write([]byte(text + "\n"))
}

func (p *printer) note(format string, values ...any) {
	p.endLine()
	p.line(note + fmt.Sprintf(format, values...))
}

// endLine ends a line that has begun.
func (p *printer) endLine() {
	if p.length > 0 {
		p.write([]byte("\n"))
	}
}

func (p *printer) flush() {
	p.to.Flush()
}
