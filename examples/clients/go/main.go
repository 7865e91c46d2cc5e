// Tune searches for the settings of a made-up training run, against a running `tuner serve`: a client to copy from.
//
// Kill it, or the server, at any moment and start it again: it carries on where it was. Two of them with different
// --client share a study; the trials of one that is not started again go to the other once their leases expire.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"os/signal"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "tuner.dev/examples/clients/go/suggestpb"
)

const (
	batch = 4 // trials at a time, each in a goroutine of its own
	steps = 10
)

func main() {
	address := flag.String("address", "localhost:8765", "where the service listens: HOST:PORT or unix:PATH")
	study := flag.String("study", "go-example", "name of the study; made when missing")
	client := flag.String("client", "tune", "name of this worker in the study")
	trials := flag.Int("trials", 40, "how many trials this worker runs")
	pace := flag.Duration("pace", 0, "how long each step of the training takes")
	ca := flag.String("ca", os.Getenv("TUNER_TLS_CA"), "file with the authority of the server, or system; without it there is no TLS")
	token := flag.String("token", os.Getenv("TUNER_TOKEN_FILE"), "file with the bearer token")
	lease := flag.Duration("lease", time.Minute, "how long a trial stays with this worker after it went silent; 0: for ever")
	patience := flag.Duration("patience", time.Minute, "how long to try to reach the server")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	conn, err := connect(*address, *ca, *token, *patience)
	if err == nil {
		defer conn.Close()
		w := worker{service: pb.NewSuggestServiceClient(conn), study: *study, client: *client, pace: *pace, lease: *lease}
		err = w.tune(ctx, *trials)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "tune:", explain(err))
		os.Exit(1)
	}
}

type worker struct {
	service pb.SuggestServiceClient
	study   string
	client  string
	pace    time.Duration
	lease   time.Duration
}

func (w worker) name() string { return "namespaces/default/studies/" + w.study }

func (w worker) tune(ctx context.Context, trials int) error {
	if err := w.create(ctx); err != nil {
		return err
	}
	for first := 0; first < trials; first += batch {
		exhausted, err := w.runBatch(ctx, first, min(batch, trials-first))
		if err != nil {
			return err
		}
		if exhausted {
			break
		}
	}
	return w.printBest(ctx)
}

// create makes the study, or joins it: the same request_id with the same spec is the same study.
func (w worker) create(ctx context.Context) error {
	spec := &pb.StudySpec{
		Parameters: []*pb.Parameter{
			float("lr", &pb.FloatDomain{Min: 1e-5, Max: 1, Scale: pb.Scale_SCALE_LOG}),
			float("momentum", &pb.FloatDomain{Min: 0, Max: 1}),
			choice("optimizer", "sgd", "adam"),
		},
		Objectives: []*pb.Objective{{Metric: "loss", Direction: pb.Direction_DIRECTION_MINIMIZE}},
		Algorithm:  &pb.Algorithm{Name: "tpe"},
		Pruning: &pb.Pruning{
			Name: "median", Settings: map[string]*pb.Value{"warmupSteps": whole(2), "minTrials": whole(4)},
		},
	}
	_, err := w.service.CreateStudy(ctx, &pb.CreateStudyRequest{
		Parent: "namespaces/default", StudyId: w.study, Study: &pb.Study{Spec: spec}, RequestId: "tune-" + w.study,
	})
	return err
}

// runBatch asks for trials and runs them side by side. Its request_id is the same whenever this worker gets here: after
// a crash it is given the same trials again, in the state they are in, and runs those that are still to be finished.
func (w worker) runBatch(ctx context.Context, first, count int) (exhausted bool, err error) {
	suggestions, err := w.service.SuggestTrials(ctx, &pb.SuggestTrialsRequest{
		Parent: w.name(), Count: int32(count), ClientId: w.client, RequestId: fmt.Sprintf("%s-%d", w.client, first),
		LeaseDuration: durationpb.New(w.lease),
	})
	if err != nil {
		return false, err
	}
	beating, stop := context.WithCancel(ctx)
	defer stop()
	go w.renewLeases(beating, suggestions.Trials)
	failures := make([]error, len(suggestions.Trials))
	var running sync.WaitGroup
	for i, trial := range suggestions.Trials {
		if trial.State != pb.TrialState_TRIAL_STATE_RUNNING {
			continue
		}
		running.Go(func() { failures[i] = w.runTrial(ctx, trial) })
	}
	running.Wait()
	for _, failure := range failures {
		if failure != nil {
			return false, failure // the first one says enough, and with its details
		}
	}
	return suggestions.Exhausted, nil
}

// renewLeases is the heartbeat of a batch, however long its steps take: without it the trials go to other workers. What
// goes wrong here, the next report or completion meets too.
func (w worker) renewLeases(ctx context.Context, trials []*pb.Trial) {
	if len(trials) == 0 || w.lease <= 0 {
		return
	}
	request := &pb.RenewLeasesRequest{Parent: w.name()}
	for _, trial := range trials {
		request.Leases = append(request.Leases, &pb.TrialLease{Number: trial.Number, Tries: trial.Tries})
	}
	beat := time.NewTicker(w.lease / 3) // two may be lost
	defer beat.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-beat.C:
			_, _ = w.service.RenewLeases(ctx, request)
		}
	}
}

func (w worker) runTrial(ctx context.Context, trial *pb.Trial) error {
	done, err := w.train(ctx, trial)
	// Somebody else has ended it, or has it since its lease expired; that is no reason to end the others.
	if why := reason(err); why == "FAILED_PRECONDITION" || why == "LEASE_EXPIRED" {
		fmt.Printf("trial %d: left: %s\n", trial.Number, explain(err))
		return nil
	}
	if err == nil {
		fmt.Printf("trial %d: %s\n", done.Number, summary(done))
	}
	return err
}

// train reports each step, and ends the trial early if the service advises so.
func (w worker) train(ctx context.Context, trial *pb.Trial) (*pb.Trial, error) {
	outcome := &pb.Outcome{Kind: &pb.Outcome_Succeeded{Succeeded: &pb.Succeeded{}}} // its value: that of the last step
	for step := range int64(steps) {
		select {
		case <-ctx.Done():
			return nil, errors.New("interrupted; the same command carries on")
		case <-time.After(w.pace):
		}
		// A trial that another worker has begun starts over, as another attempt.
		measured := &pb.Measurement{Attempt: int64(max(1, trial.Tries)), Metric: "loss", Step: step, Value: loss(trial.Parameters, step)}
		advice, err := w.service.ReportMeasurements(ctx, &pb.ReportMeasurementsRequest{
			Name: trial.Name, Measurements: []*pb.Measurement{measured}, Tries: trial.Tries,
		})
		if err != nil {
			return nil, err
		}
		if advice.ShouldStop {
			outcome = &pb.Outcome{Kind: &pb.Outcome_Pruned{Pruned: &pb.Pruned{Reason: advice.Reason}}}
			break
		}
	}
	return w.service.CompleteTrial(ctx, &pb.CompleteTrialRequest{Name: trial.Name, Outcome: outcome, Tries: trial.Tries})
}

func (w worker) printBest(ctx context.Context) error {
	optimal, err := w.service.ListOptimalTrials(ctx, &pb.ListOptimalTrialsRequest{Parent: w.name()})
	if err != nil {
		return err
	}
	if len(optimal.Trials) == 0 {
		return errors.New("no trial has succeeded")
	}
	best := optimal.Trials[0]
	lr, momentum := best.Parameters["lr"].GetDoubleValue(), best.Parameters["momentum"].GetDoubleValue()
	optimizer := text(best.Parameters["optimizer"])
	fmt.Printf("best: trial %d: %s: lr=%g momentum=%g optimizer=%s\n", best.Number, summary(best), lr, momentum, optimizer)
	return nil
}

// text of any value: null, lists and objects, which only a choice has, come as JSON.
func text(value *pb.Value) string {
	switch kind := value.GetKind().(type) {
	case *pb.Value_StringValue:
		return kind.StringValue
	case *pb.Value_IntValue:
		return fmt.Sprint(kind.IntValue)
	case *pb.Value_DoubleValue:
		return fmt.Sprint(kind.DoubleValue)
	case *pb.Value_BoolValue:
		return fmt.Sprint(kind.BoolValue)
	case *pb.Value_JsonValue:
		return kind.JsonValue
	}
	return "" // the parameter is inactive
}

func summary(trial *pb.Trial) string {
	state := strings.ToLower(strings.TrimPrefix(trial.State.String(), "TRIAL_STATE_"))
	if trial.Value == nil {
		return state
	}
	return fmt.Sprintf("%s loss=%.4f", state, trial.GetValue())
}

// loss of a made-up training run after `step`: best with adam, a learning rate of 0.01, a momentum of 0.9.
func loss(parameters map[string]*pb.Value, step int64) float64 {
	loss := math.Pow(math.Log10(parameters["lr"].GetDoubleValue())+2, 2)
	loss += math.Pow(parameters["momentum"].GetDoubleValue()-0.9, 2)
	if parameters["optimizer"].GetStringValue() == "sgd" {
		loss += 0.5
	}
	return loss + 1/float64(step+1)
}

func float(name string, domain *pb.FloatDomain) *pb.Parameter {
	return &pb.Parameter{Name: name, Domain: &pb.Parameter_FloatDomain{FloatDomain: domain}}
}

func choice(name string, choices ...string) *pb.Parameter {
	domain := &pb.ChoiceDomain{}
	for _, c := range choices {
		domain.Values = append(domain.Values, &pb.Value{Kind: &pb.Value_StringValue{StringValue: c}})
	}
	return &pb.Parameter{Name: name, Domain: &pb.Parameter_ChoiceDomain{ChoiceDomain: domain}}
}

func whole(n int64) *pb.Value { return &pb.Value{Kind: &pb.Value_IntValue{IntValue: n}} }
