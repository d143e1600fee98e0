// Runs scenarios with amqp091-go: one JSON request a line on standard input, one JSON answer a line on standard output.
// The first line out lists the scenarios this driver knows. tests/README.md describes the protocol.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"runtime/debug"
	"slices"
)

type request struct {
	Scenario string `json:"scenario"`
	URI      string `json:"uri"`
	Prefix   string `json:"prefix"`
}

// object is a JSON object, a scenario's observations among them.
type object = map[string]any

var scenarios = map[string]func(*session) any{
	"connect":                          connect,
	"wrong_password":                   wrongPassword,
	"wrong_vhost":                      wrongVhost,
	"heartbeat_two_seconds":            heartbeatTwoSeconds,
	"frame_max_4096":                   frameMax4096,
	"frame_max_131072":                 frameMax131072,
	"many_channels":                    manyChannels,
	"ten_connections":                  tenConnections,
	"default_exchange":                 defaultExchange,
	"predeclared_exchanges":            predeclaredExchanges,
	"direct_exchange":                  directExchange,
	"fanout_exchange":                  fanoutExchange,
	"topic_exchange":                   topicExchange,
	"headers_exchange":                 headersExchange,
	"exchange_to_exchange":             exchangeToExchange,
	"alternate_exchange":               alternateExchange,
	"properties":                       properties,
	"header_values":                    headerValues,
	"body_sizes":                       bodySizes,
	"confirms":                         confirms,
	"mandatory_return":                 mandatoryReturn,
	"immediate":                        immediate,
	"tx_commit":                        txCommit,
	"tx_rollback":                      txRollback,
	"tx_refused":                       txRefused,
	"get":                              get,
	"consume_and_ack":                  consumeAndAck,
	"consume_without_ack":              consumeWithoutAck,
	"prefetch_per_consumer":            prefetchPerConsumer,
	"prefetch_of_later_consumers_only": prefetchOfLaterConsumersOnly,
	"prefetch_global":                  prefetchGlobal,
	"cancel":                           cancel,
	"server_cancel":                    serverCancel,
	"consumer_priority":                consumerPriority,
	"exclusive_consumer":               exclusiveConsumer,
	"duplicate_consumer_tag":           duplicateConsumerTag,
	"requeue_on_close":                 requeueOnClose,
	"ack_multiple":                     ackMultiple,
	"ack_all_outstanding":              ackAllOutstanding,
	"nack_requeue_order":               nackRequeueOrder,
	"nack_drops":                       nackDrops,
	"reject":                           reject,
	"recover":                          recoverUnacked,
	"recover_without_requeue":          recoverWithoutRequeue,
	"unknown_delivery_tag":             unknownDeliveryTag,
	"server_named_queue":               serverNamedQueue,
	"exclusive_queue":                  exclusiveQueue,
	"auto_delete_queue":                autoDeleteQueue,
	"auto_delete_exchange":             autoDeleteExchange,
	"passive_declare":                  passiveDeclare,
	"purge_and_delete_counts":          purgeAndDeleteCounts,
	"if_unused_if_empty":               ifUnusedIfEmpty,
	"redeclare":                        redeclare,
	"redeclare_with_arguments":         redeclareWithArguments,
	"missing_queues_and_exchanges":     missingQueuesAndExchanges,
	"reserved_names":                   reservedNames,
	"default_exchange_is_fixed":        defaultExchangeIsFixed,
	"internal_exchange":                internalExchange,
	"unknown_exchange_type":            unknownExchangeType,
	"pipelined_after_an_error":         pipelinedAfterAnError,
	"names":                            names,
	"cancel_of_an_unknown_tag":         cancelOfAnUnknownTag,
	"no_wait_errors":                   noWaitErrors,
	"tx_returns":                       txReturns,
}

func main() {
	answer(object{"scenarios": slices.Sorted(maps.Keys(scenarios))})
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var asked request
		check(json.Unmarshal(lines.Bytes(), &asked))
		answer(run(asked))
	}
}

func run(asked request) (reply object) {
	s := &session{uri: asked.URI, prefix: asked.Prefix}
	defer s.close()
	defer func() {
		if problem := recover(); problem != nil {
			text := fmt.Sprintf("%v\n%s", problem, debug.Stack())
			reply = object{"scenario": asked.Scenario, "ok": false, "error": text}
		}
	}()
	return object{"scenario": asked.Scenario, "ok": true, "observed": scenarios[asked.Scenario](s)}
}

func answer(message object) {
	check(json.NewEncoder(os.Stdout).Encode(message))
}
