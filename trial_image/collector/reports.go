package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"
)

const (
	reportMethod  = "/api.v1.beta1.DBManager/ReportObservationLog"
	largestReport = 16 << 20
)

// A status of gRPC.
type status int

const (
	statusOK            status = 0
	statusInvalid       status = 3
	statusExhausted     status = 8
	statusUnimplemented status = 12
	statusUnavailable   status = 14
)

// Reports is Katib's DBManager for the containers of the pod, whose /etc/hosts has Katib's name for it. A report is
// printed before it is answered: what was answered is in the log, whatever happens to this process.
type reports struct {
	server http.Server
	queue  chan report
}

// The main loop prints a report, and then closes printed.
type report struct {
	lines   []string
	printed chan struct{}
}

func newReports(address string) (*reports, error) {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, err
	}
	r := &reports{queue: make(chan report)}
	r.server.Handler = r
	r.server.ReadHeaderTimeout = patience
	r.server.Protocols = new(http.Protocols)
	r.server.Protocols.SetUnencryptedHTTP2(true)
	go r.server.Serve(listener)
	return r, nil
}

func (r *reports) rereads() bool { return false }

func (r *reports) rest() time.Duration { return 0 } // poll waits

func (r *reports) poll(out *printer) {
	select {
	case one := <-r.queue:
		one.print(out)
	case <-time.After(interval):
	}
}

// finish prints the reports that have arrived. The containers that report have ended.
func (r *reports) finish(out *printer) {
	limit, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	closed := make(chan struct{})
	go func() {
		r.server.Shutdown(limit)
		close(closed)
	}()
	for {
		select {
		case one := <-r.queue:
			one.print(out)
		case <-closed:
			return
		}
	}
}

func (r report) print(out *printer) {
	for _, each := range r.lines {
		out.line(each)
	}
	out.flush()
	close(r.printed)
}

func (r *reports) ServeHTTP(answer http.ResponseWriter, call *http.Request) {
	found, message := r.take(call)
	header := answer.Header()
	header.Set("Content-Type", "application/grpc")
	if found == statusOK {
		answer.Write(make([]byte, 5)) // an empty message
	}
	header.Set(http.TrailerPrefix+"Grpc-Status", strconv.Itoa(int(found)))
	header.Set(http.TrailerPrefix+"Grpc-Message", message)
}

func (r *reports) take(call *http.Request) (status, string) {
	if call.URL.Path != reportMethod {
		return statusUnimplemented, "this DBManager of one trial serves ReportObservationLog only"
	}
	data, err := io.ReadAll(io.LimitReader(call.Body, largestReport+6))
	switch {
	case err != nil:
		return statusUnavailable, "the report did not arrive whole"
	case len(data) > largestReport+5:
		return statusExhausted, "the report has more than 16 MiB; send it in parts"
	case len(data) < 5:
		return statusInvalid, fmt.Sprintf("expected one message, got %d bytes", len(data))
	case uint64(binary.BigEndian.Uint32(data[1:])) != uint64(len(data)-5):
		length := binary.BigEndian.Uint32(data[1:])
		return statusInvalid, fmt.Sprintf("expected one message of %d bytes, got %d bytes", length, len(data)-5)
	case data[0] != 0:
		return statusUnimplemented, "the message is compressed; send it as it is"
	}
	lines, err := reported(data[5:])
	if err != nil {
		return statusInvalid, err.Error()
	}
	one := report{lines, make(chan struct{})}
	select {
	case r.queue <- one:
		<-one.printed
		return statusOK, ""
	case <-call.Context().Done():
		return statusUnavailable, "the caller has gone"
	}
}

var errReport = errors.New("the message is not a ReportObservationLogRequest")

// reported returns a ReportObservationLogRequest as lines of JSON. Values that were reported together are in one line:
// they follow each other with the same time stamp, and have different names.
func reported(request []byte) ([]string, error) {
	var lines []string
	var line jsonLine
	var names map[string]bool
	last := ""
	end := func() {
		if line.Len() > 0 {
			lines = append(lines, line.String())
		}
		line.Reset()
		names = map[string]bool{}
	}
	add := func(stamp, name, value string) {
		if names == nil || stamp != last || names[name] {
			end()
		}
		last, names[name] = stamp, true
		line.add(name, reportedNumber(value))
	}
	ok := fields(request, func(field int, _ uint64, log []byte) bool {
		return field != 2 || log != nil && fields(log, func(field int, _ uint64, entry []byte) bool {
			if field != 1 {
				return true
			}
			stamp, name, value, ok := metricLog(entry)
			if ok && name != "" {
				add(stamp, name, value)
			}
			return ok
		})
	})
	end()
	if !ok {
		return nil, errReport
	}
	return lines, nil
}

func metricLog(data []byte) (stamp, name, value string, ok bool) {
	ok = fields(data, func(field int, _ uint64, content []byte) bool {
		switch field {
		case 1:
			stamp = string(content)
		case 2:
			return fields(content, func(field int, _ uint64, content []byte) bool {
				switch text := strings.ToValidUTF8(string(content), "\uFFFD"); field {
				case 1:
					name = text
				case 2:
					value = text
				}
				return true
			})
		}
		return true
	})
	return stamp, name, value, ok
}

// reportedNumber returns a value as JSON has it: a decimal number, or text that is none.
func reportedNumber(text string) string {
	value, err := strconv.ParseFloat(strings.Trim(text, " \t\r\n"), 64)
	isOfGo := strings.ContainsAny(text, "xX_") // 0x10 and 1_000, which ParseFloat also reads
	if (err == nil || math.IsInf(value, 0)) && !isOfGo {
		return number(value, 64)
	}
	return quoted(text)
}
