// Command logs plays the log half of a kubelet for nodes whose pods nobody runs.
//
// What a pod "prints" stands in the environment of its first container:
//
//	KWOK_LOG         lines; one that opens with "+1.5s " is printed that long after the start, others at once
//	KWOK_LOG_1       the same, for the pod of completion index 1 of an Indexed Job
//	KWOK_LOG_EVERY   the lines come again at this interval, as long as the pod runs; {n} counts the rounds from 1
//
// {uid} in a line is the number that the first eight digits of the pod's uid make.
//
// As with a kubelet, a followed log ends when its pod ends, and lines carry times that sinceTime understands. One
// watch of all pods tells who runs; nothing is written. It answers everyone, so it listens on the loopback only.
package main

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

type object struct {
	Metadata struct {
		Name, Namespace, UID, ResourceVersion string
		Labels                                map[string]string
	}
	Spec struct {
		Containers []struct {
			Name string
			Env  []struct{ Name, Value string }
		}
	}
	Status struct {
		Phase             string
		ContainerStatuses []struct {
			State struct {
				Running    *struct{ StartedAt time.Time }
				Terminated *struct{ StartedAt, FinishedAt time.Time }
			}
		}
	}
}

type pod struct {
	uid     string
	lines   []line
	every   time.Duration
	started time.Time // zero: not yet
	ended   time.Time // zero: not yet
	gone    chan struct{}
}

type line struct {
	after time.Duration
	text  string
}

type server struct {
	mutex sync.Mutex
	pods  map[string]*pod
}

func script(o *object) (lines []line, every time.Duration) {
	if len(o.Spec.Containers) == 0 {
		return nil, 0
	}
	set := map[string]string{}
	for _, variable := range o.Spec.Containers[0].Env {
		set[variable.Name] = variable.Value
	}
	printed, said := set["KWOK_LOG"]
	if own, found := set["KWOK_LOG_"+o.Metadata.Labels["batch.kubernetes.io/job-completion-index"]]; found {
		printed, said = own, true
	}
	if said {
		for _, text := range strings.Split(strings.TrimSuffix(printed, "\n"), "\n") {
			after := time.Duration(0)
			if offset, rest, found := strings.Cut(text, " "); found && strings.HasPrefix(offset, "+") {
				if parsed, err := time.ParseDuration(offset[1:]); err == nil {
					after, text = parsed, rest
				}
			}
			lines = append(lines, line{after, strings.ReplaceAll(text, "{uid}", number(o.Metadata.UID))})
		}
	}
	every, _ = time.ParseDuration(set["KWOK_LOG_EVERY"])
	return lines, every
}

func number(uid string) string {
	value, _ := strconv.ParseUint(uid[:min(8, len(uid))], 16, 64)
	return strconv.FormatUint(value, 10)
}

// see takes in what the API server says of one pod. The status has whole seconds, so moments just seen are ours. An
// end that was missed is now if the start was seen: by the status, it may be before that start.
func (s *server) see(kind string, o *object, fresh bool) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	key := o.Metadata.Namespace + "/" + o.Metadata.Name
	known := s.pods[key]
	if known != nil && (kind == "DELETED" || known.uid != o.Metadata.UID) {
		if known.ended.IsZero() {
			known.ended = time.Now()
			close(known.gone)
		}
		delete(s.pods, key)
		known = nil
	}
	if kind == "DELETED" {
		return
	}
	if known == nil {
		known = &pod{uid: o.Metadata.UID, gone: make(chan struct{})}
		known.lines, known.every = script(o)
		s.pods[key] = known
	}
	begun, done := time.Now(), time.Now()
	for _, status := range o.Status.ContainerStatuses[:min(1, len(o.Status.ContainerStatuses))] {
		if terminated := status.State.Terminated; terminated != nil {
			begun = terminated.StartedAt
			if !fresh && known.started.IsZero() {
				done = terminated.FinishedAt.Add(time.Second)
			}
		} else if status.State.Running != nil && !fresh {
			begun = status.State.Running.StartedAt
		}
	}
	phase := o.Status.Phase
	if known.started.IsZero() && (phase == "Running" || phase == "Succeeded" || phase == "Failed") {
		known.started = begun
	}
	if known.ended.IsZero() && (phase == "Succeeded" || phase == "Failed") {
		known.ended = done
		close(known.gone)
	}
}

// watch lists, then follows, and starts over whenever the connection or its place in history is lost.
func (s *server) watch(client *http.Client, address, token string) {
	ask := func(query string) (*http.Response, error) {
		request, err := http.NewRequest("GET", address+"/api/v1/pods"+query, nil)
		if err != nil {
			return nil, err
		}
		request.Header.Set("Authorization", "Bearer "+token)
		response, err := client.Do(request)
		if err == nil && response.StatusCode != http.StatusOK {
			response.Body.Close()
			return nil, fmt.Errorf("list or watch of pods: %s", response.Status)
		}
		return response, err
	}
	once := func() error {
		response, err := ask("")
		if err != nil {
			return err
		}
		var list struct {
			Metadata struct{ ResourceVersion string }
			Items    []object
		}
		err = json.NewDecoder(response.Body).Decode(&list)
		response.Body.Close()
		if err != nil {
			return err
		}
		there := map[string]bool{}
		for index := range list.Items {
			s.see("LISTED", &list.Items[index], false)
			there[list.Items[index].Metadata.UID] = true
		}
		s.mutex.Lock()
		var lost []object
		for key, known := range s.pods {
			if !there[known.uid] {
				var o object
				o.Metadata.Namespace, o.Metadata.Name, _ = strings.Cut(key, "/")
				lost = append(lost, o)
			}
		}
		s.mutex.Unlock()
		for index := range lost {
			s.see("DELETED", &lost[index], false)
		}
		response, err = ask("?watch=true&resourceVersion=" + list.Metadata.ResourceVersion)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		for events := json.NewDecoder(bufio.NewReader(response.Body)); ; {
			var event struct {
				Type   string
				Object object
			}
			if err := events.Decode(&event); err != nil {
				return err
			}
			if event.Type == "ERROR" {
				return fmt.Errorf("the watch of pods was ended by the server")
			}
			s.see(event.Type, &event.Object, true)
		}
	}
	for {
		log.Print(once())
		time.Sleep(200 * time.Millisecond)
	}
}

// at is when the index-th line is printed and what it says; false if it never is.
func (p *pod) at(index int) (time.Time, string, bool) {
	if len(p.lines) == 0 || (p.every <= 0 && index >= len(p.lines)) {
		return time.Time{}, "", false
	}
	round, entry := index/len(p.lines), p.lines[index%len(p.lines)]
	text := strings.ReplaceAll(entry.text, "{n}", strconv.Itoa(round+1))
	// A nanosecond apart, so that a reader that continues after a time continues after one line.
	return p.started.Add(time.Duration(round)*p.every + entry.after + time.Duration(index%len(p.lines))), text, true
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	if len(parts) != 4 || parts[0] != "containerLogs" {
		http.Error(w, "only containerLogs is played here", http.StatusNotFound)
		return
	}
	s.mutex.Lock()
	known := s.pods[parts[1]+"/"+parts[2]]
	var now pod
	if known != nil {
		now = *known
	}
	s.mutex.Unlock()
	if known == nil || now.started.IsZero() {
		text := "container %q in pod %q is waiting to start: ContainerCreating"
		http.Error(w, fmt.Sprintf(text, parts[3], parts[2]), http.StatusBadRequest)
		return
	}
	query := r.URL.Query()
	follow := query.Get("follow") == "true"
	stamps := query.Get("timestamps") == "true"
	var since time.Time
	if given, err := time.Parse(time.RFC3339Nano, query.Get("sinceTime")); err == nil {
		since = given
	} else if seconds, err := strconv.Atoi(query.Get("sinceSeconds")); err == nil {
		since = time.Now().Add(-time.Duration(seconds) * time.Second)
	}
	left := int64(-1)
	if limit, err := strconv.ParseInt(query.Get("limitBytes"), 10, 64); err == nil {
		left = limit
	}
	until := func() time.Time {
		s.mutex.Lock()
		defer s.mutex.Unlock()
		if known.ended.IsZero() {
			return time.Now()
		}
		return known.ended
	}
	index := 0
	if tail, err := strconv.Atoi(query.Get("tailLines")); err == nil {
		for limit := until(); ; index++ {
			if when, _, is := now.at(index); !is || when.After(limit) {
				break
			}
		}
		index = max(0, index-tail)
	}
	flush := http.NewResponseController(w)
	flush.Flush()
	for ; left != 0; index++ {
		when, text, is := now.at(index)
		if !is {
			when = time.Unix(1<<40, 0)
		}
		if limit := until(); when.After(limit) {
			if !follow {
				return
			}
			flush.Flush()
			timer := time.NewTimer(min(time.Until(when), time.Hour))
			select {
			case <-timer.C:
			case <-now.gone:
			case <-r.Context().Done():
			}
			timer.Stop()
			if r.Context().Err() != nil || when.After(until()) {
				return
			}
		}
		if when.Before(since) {
			continue
		}
		if stamps {
			text = when.UTC().Format("2006-01-02T15:04:05.000000000Z07:00") + " " + text
		}
		text += "\n"
		if left > 0 && int64(len(text)) > left {
			text = text[:left]
		}
		if left > 0 {
			left -= int64(len(text))
		}
		if _, err := io.WriteString(w, text); err != nil {
			return
		}
	}
}

func main() {
	address := flag.String("server", "", "the API server")
	authority := flag.String("ca", "", "file with the authority of its certificate")
	token := flag.String("token", "", "who asks")
	listen := flag.String("listen", "127.0.0.1:0", "where to answer")
	certificate := flag.String("cert", "", "file with our own certificate")
	key := flag.String("key", "", "file with its key")
	flag.Parse()
	pem, err := os.ReadFile(*authority)
	if err != nil {
		log.Fatal(err)
	}
	trusted := x509.NewCertPool()
	trusted.AppendCertsFromPEM(pem)
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: trusted}}}
	played := &server{pods: map[string]*pod{}}
	go played.watch(client, *address, *token)
	log.Fatal(http.ListenAndServeTLS(*listen, *certificate, *key, played))
}
