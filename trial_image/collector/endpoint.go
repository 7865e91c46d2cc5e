package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"
)

const (
	scrapeInterval      = 500 * time.Millisecond
	firstScrapeInterval = 100 * time.Millisecond // until the endpoint has answered
	patience            = 2 * time.Second        // for one answer
	largestAnswer       = 4 << 20
)

var sample = regexp.MustCompile(`^([A-Za-z_:][\w:]*)(\{.*\})?\s+(\S+)(?:\s+-?\d+)?\s*$`)

// An endpoint is scraped while the trial runs. It has no history: what changes between two scrapes is not seen.
type endpoint struct {
	port    int
	path    string
	names   []string
	last    string
	trouble string
}

func (e *endpoint) rereads() bool { return false }

func (e *endpoint) rest() time.Duration {
	if e.last == "" {
		return firstScrapeInterval
	}
	return scrapeInterval
}

func (e *endpoint) poll(out *printer) {
	body, err := scrape(e.port, e.path)
	if err != nil {
		e.trouble = fmt.Sprintf("port %d%s: %v", e.port, e.path, err)
		return
	}
	var line jsonLine
	for _, found := range samples(body, e.names) {
		line.add(found.tag, found.text)
	}
	if line.Len() == 0 {
		e.trouble = fmt.Sprintf("port %d%s has none of %s", e.port, e.path, strings.Join(e.names, ", "))
	} else if line.String() != e.last {
		e.last = line.String()
		out.line(e.last)
	}
}

func (e *endpoint) finish(out *printer) {
	if e.last == "" && e.trouble != "" {
		out.note("%s", e.trouble)
	}
}

// scrape returns the body of the endpoint's answer.
func scrape(port int, path string) (string, error) {
	deadline := time.Now().Add(patience)
	connection, err := net.DialTimeout("tcp", fmt.Sprintf("127.0.0.1:%d", port), patience)
	if err != nil {
		return "", fmt.Errorf("it cannot be reached: %w", err)
	}
	defer connection.Close()
	connection.SetDeadline(deadline)
	fmt.Fprintf(connection, "GET %s HTTP/1.0\r\nHost: 127.0.0.1:%d\r\nAccept: text/plain\r\n\r\n", path, port)
	answer, err := io.ReadAll(io.LimitReader(connection, largestAnswer+1))
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return "", fmt.Errorf("it did not answer within %v", patience)
	case err != nil:
		return "", fmt.Errorf("it cannot be reached: %w", err)
	case len(answer) > largestAnswer:
		return "", fmt.Errorf("its answer is longer than %d MiB", largestAnswer>>20)
	}
	head, body, _ := strings.Cut(string(answer), "\r\n\r\n")
	status, _, _ := strings.Cut(head, "\r\n")
	if words := strings.Fields(status); len(words) < 2 || words[1] != "200" {
		return "", fmt.Errorf("it answered %.100q", status)
	}
	return body, nil
}

// samples returns the samples with these names, in their order. A metric with labels counts if one sample has its name.
// With several, none does, unless one has no labels.
func samples(body string, names []string) []scalar {
	plain, labeled, times := map[string]string{}, map[string]string{}, map[string]int{}
	wanted := map[string]bool{}
	for _, name := range names {
		wanted[name] = true
	}
	for _, line := range strings.Split(body, "\n") {
		found := sample.FindStringSubmatch(strings.TrimSuffix(line, "\r"))
		if found == nil || !wanted[found[1]] {
			continue
		}
		value, err := strconv.ParseFloat(found[3], 64)
		if err != nil && !errors.Is(err, strconv.ErrRange) {
			continue
		}
		if text := number(value, 64); found[2] == "" || found[2] == "{}" {
			plain[found[1]] = text
		} else {
			labeled[found[1]] = text
			times[found[1]]++
		}
	}
	var all []scalar
	for _, name := range names {
		if text, known := plain[name]; known {
			all = append(all, scalar{name, text})
		} else if times[name] == 1 {
			all = append(all, scalar{name, labeled[name]})
		}
	}
	return all
}
